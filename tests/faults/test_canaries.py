"""Nothing executes when it is read, and nothing outside a folder is opened because a file in it says so.

Each case plants something in what a command reads: a pickle that makes a folder, a name, link or pipe that leads elsewhere, a
header that lies. The command may refuse or go on, but never with a traceback, never late, and never with the canary.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mt_train.checkpoint.manifest import RESERVED, read_manifest, write_manifest

IN_MODIFY, IN_OPEN = 0x2, 0x20
IN_NONBLOCK = os.O_NONBLOCK
STEP = "checkpoints/step-00000002"
MODEL, INDEX, MANIFEST = f"{STEP}/model/model-00001.safetensors", f"{STEP}/model/index.json", f"{STEP}/manifest.json"
STATE, RANK = f"{STEP}/state/rank-0000.safetensors", f"{STEP}/state/rank-0000.json"
LATEST = "checkpoints/latest"
READ = (MODEL, STATE, INDEX, RANK, MANIFEST, LATEST, "run.yaml", "plugins.lock.json")
"""What a resumed run reads and trusts; it refuses when any of them is not what it was."""
WRITTEN = ("metrics.jsonl", "samples.jsonl", "about.json", "loss.png", "logs/rank-0.log")
"""What it writes on: never through a link or into a pipe."""


@dataclass
class Scene:
    """A copy of a run after two of three steps, a folder of weights, and what must neither run nor be opened."""

    folder: Path

    run = property(lambda self: self.folder / "deep" / "run")
    weights = property(lambda self: self.folder / "deep" / "weights")
    canary = property(lambda self: self.folder / "fired")
    outside = property(lambda self: self.folder / "outside.safetensors")

    def pickle(self) -> bytes:
        return pickle.dumps(Bomb(str(self.canary)), protocol=2)

    def torch_pickle(self) -> bytes:
        import torch

        path = self.folder / "bomb"
        torch.save({"w": Bomb(str(self.canary))}, path)
        return path.read_bytes()

    def reseal(self) -> None:
        """As somebody would who can compute hashes: the manifest fits whatever lies there."""
        folder = self.run / STEP
        manifest = read_manifest(folder)
        content = {key: value for key, value in manifest.items() if key not in RESERVED}
        (folder / "manifest.json").unlink()
        write_manifest(folder, content, step=manifest["step"], save_number=manifest["save_number"])


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def header(entries: str | bytes, length: int | None = None) -> bytes:
    """A safetensors file of this header, with 4 bytes of data."""
    text = entries.encode() if isinstance(entries, str) else entries
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * 4


def entry(name: str, begin: int = 0, end: int = 4) -> str:
    return f'"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{begin},{end}]}}'


HEADERS: dict[str, bytes] = {
    "endless header": header("{}", length=2**63),
    "header longer than the file": header("{}", length=10**6),
    "a hundred thousand tensors": header("{" + ",".join(entry(f"w{n}") for n in range(100_000)) + "}"),
    "tensors on top of one another": header("{" + entry("a") + "," + entry("b") + "}"),
    "an offset below zero": header("{" + entry("a", -4, 0) + "}"),
    "a tensor beyond the file": header("{" + entry("a", 0, 2**40).replace("[1]", f"[{2**38}]") + "}"),
    "a name twice": header("{" + entry("a") + "," + entry("a") + "}"),
    "a header that is nested deeply": header("[" * 50_000),
    "a pickle": pickle.dumps({"a": 1}),
}
DEEP = "[" * 100_000
TAG = "!!python/object/apply:os.mkdir [{canary}]\n"
ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.mkdir('{canary}') }}",
    "builtins": "{{ self.__init__.__globals__.__builtins__.__import__('os').mkdir('{canary}') }}",
    "attribute": "{{ (messages|attr('__class__')).__base__.__subclasses__() }}",
    "formatted": "{{ '{0.__class__}'.format(messages) }}{% include '{outside}' %}",
}
COMMANDS: dict[str, Callable[[Scene], tuple[str, list[str]]]] = {
    "resume": lambda s: ("train", ["--resume", str(s.run), "--train.steps", "3"]),
    "auto": lambda s: ("train", ["--model", "llama", "--output", str(s.run), "--resume", "auto"]),
    "generate": lambda s: ("generate", ["--run", str(s.run), "--prompt", "x", "--max-new-tokens", "1"]),
    "eval": lambda s: ("eval", ["--run", str(s.run), "--output", "none"]),
    "report": lambda s: ("report", [str(s.run), "--output", str(s.folder / "page.html")]),
    "verify": lambda s: ("checkpoint", ["verify", str(s.run)]),
    "list": lambda s: ("checkpoint", ["list", str(s.run)]),
    "weights": lambda s: ("train", [*START, "--model.weights", str(s.weights)]),
    "generate weights": lambda s: (
        "generate",
        ["--model", "llama", "--weights", str(s.weights), "--tokenizer", "byte", "--prompt", "x"],
    ),
    "overlay": lambda s: ("train", [*START, "--model.overlay", str(s.weights / "model.safetensors")]),
    "config": lambda s: ("train", ["--config", str(s.folder / "config.yaml"), "--output", "none"]),
    "tokenizer": lambda s: ("train", [*START, "--tokenizer", "huggingface", "--tokenizer.path", str(s.weights)]),
    "sentencepiece": lambda s: ("train", [*START, "--tokenizer", "sentencepiece", "--tokenizer.path", str(s.weights)]),
    "llama3": lambda s: (
        "train",
        [*START, "--tokenizer", "llama3", "--tokenizer.path", str(s.weights / "tokenizer.model")],
    ),
    "template": lambda s: ("generate", ["--run", str(s.run), *ASKED, "--chat-template", "template.jinja"]),
}
ASKED = ["--prompts", "prompts.jsonl", "--out", "out.jsonl", "--max-new-tokens", "1"]
START = ["--model", "llama", "--train.steps", "1", "--train.sequence-len", "32", "--output", "none"]
Plant = Callable[[Scene], None]
Case = tuple[str, str, Plant, bool]
"""What it is, the command that reads it, how it is planted, and whether the command has to refuse."""


def write(base: str, name: str, content: str | bytes | Callable[[Scene], bytes], *, seal: bool = False) -> Plant:
    def plant(scene: Scene) -> None:
        data = content(scene) if callable(content) else content
        if isinstance(data, str):
            data = data.replace("{canary}", str(scene.canary)).replace("{outside}", str(scene.outside)).encode()
        path: Path = getattr(scene, base) / name
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        if seal:
            scene.reseal()

    return plant


def link(base: str, name: str) -> Plant:
    """The file or folder itself stands outside, as it was, and a link to it where it was."""

    def plant(scene: Scene) -> None:
        path: Path = getattr(scene, base) / name
        scene.outside.unlink()
        if path.exists():
            path.rename(scene.outside)
        path.symlink_to(scene.outside)

    return plant


def pipe(base: str, name: str) -> Plant:
    def plant(scene: Scene) -> None:
        path: Path = getattr(scene, base) / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return plant


def index_of(where: str) -> Plant:
    """An index of ours that leads elsewhere, with hashes that fit."""
    return lambda scene: write("run", INDEX, json.dumps({"a": where.format(s=scene)}), seal=True)(scene)


def weight_map(file: str, where: str) -> Plant:
    def plant(scene: Scene) -> None:
        (scene.weights / "model.safetensors").unlink()
        (scene.weights / file).write_text(json.dumps({"weight_map": {"a": where.format(s=scene)}}))

    return plant


def listed_plant(name: str) -> Plant:
    """A manifest, sealed by nobody as earlier versions were, that lists a file elsewhere."""

    def plant(scene: Scene) -> None:
        manifest = json.loads((scene.run / MANIFEST).read_text())
        del manifest["sha256"]
        manifest["files"][name.format(s=scene)] = manifest["files"]["model/index.json"]
        (scene.run / MANIFEST).write_text(json.dumps(manifest))

    return plant


def foreign_code(scene: Scene) -> None:
    """A tokenizer that says its class is in a file beside it."""
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}}
    (scene.weights / "tokenizer_config.json").write_text(json.dumps(settings))
    (scene.weights / "tokenization_evil.py").write_text(f"import os\nos.mkdir({str(scene.canary)!r})\n")


def in_place_of_weights(name: str, content: Callable[[Scene], bytes]) -> Plant:
    def plant(scene: Scene) -> None:
        (scene.weights / "model.safetensors").unlink()
        write("weights", name, content)(scene)
        if name.endswith("pth"):
            (scene.weights / "params.json").write_text('{"dim": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 272}')

    return plant


def cases() -> Iterator[Case]:
    for file in READ:
        yield f"a pickle as {file}", "resume", write("run", file, Scene.pickle), True
        yield f"a link as {file}", "resume", link("run", file), True
        yield f"a pipe as {file}", "resume", pipe("run", file), True
    for file in (MODEL, MANIFEST, LATEST):
        yield f"a pipe as {file}, for --resume auto", "auto", pipe("run", file), True
        for command in ("generate", "eval", "verify", "report"):
            yield f"a pickle as {file}, for {command}", command, write("run", file, Scene.pickle), command != "report"
    for file in WRITTEN:
        yield f"a pickle as {file}", "resume", write("run", file, Scene.pickle), False
        yield f"a link as {file}", "resume", link("run", file), False
        yield f"a pipe as {file}", "resume", pipe("run", file), False
    for file in ("metrics.jsonl", "samples.jsonl", "about.json", "plugins.lock.json"):
        yield f"a pickle as {file}, for the report", "report", write("run", file, Scene.pickle), False
        yield f"a pipe as {file}, for the report", "report", pipe("run", file), False
    for folder in (f"{STEP}/model", f"{STEP}/state", STEP):
        yield f"a link as the folder {folder}", "resume", link("run", folder), True
    for file in (MODEL, STATE):
        yield f"a pickle of torch as {file}, sealed", "resume", write("run", file, Scene.torch_pickle, seal=True), True
    for name, content in HEADERS.items():
        yield f"{name} in a checkpoint, sealed", "resume", write("run", MODEL, content, seal=True), True
        yield f"{name} in an overlay", "overlay", write("weights", "model.safetensors", content), True
        yield f"{name} in weights", "weights", write("weights", "model.safetensors", content), True
    for where in ("../../../../../outside.safetensors", "{s.outside}"):
        yield f"an index that leads to {where}", "resume", index_of(where), True
        yield f"an index that leads to {where}, for generate", "generate", index_of(where), True
        yield f"latest that names {where}", "resume", lambda s, w=where: write("run", LATEST, w.format(s=s))(s), True
        yield f"a manifest that lists {where}", "resume", listed_plant(where), True
    for where in ("../../outside.safetensors", "{s.outside}"):
        for file in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
            yield f"{file} that leads to {where}", "weights", weight_map(file, where), True
    yield "deep JSON as an index", "resume", write("run", INDEX, DEEP, seal=True), True
    yield "deep JSON as the state's numbers", "resume", write("run", RANK, DEEP, seal=True), True
    yield "a state of another shape", "resume", write("run", RANK, "[]", seal=True), True
    yield "deep JSON as a config of weights", "weights", write("weights", "config.json", DEEP), True
    yield "deep JSON as about.json", "report", write("run", "about.json", DEEP), False
    yield "deep YAML as run.yaml", "resume", write("run", "run.yaml", DEEP), True
    yield "a tag in run.yaml", "resume", write("run", "run.yaml", "model: " + TAG), True
    yield "a tag in run.yaml, for generate", "generate", write("run", "run.yaml", "model: " + TAG), True
    yield "a tag in run.yaml, for the report", "report", write("run", "run.yaml", "model: " + TAG), True
    yield "a tag in --config", "config", write("folder", "config.yaml", "model: " + TAG), True
    yield "deep YAML in --config", "config", write("folder", "config.yaml", DEEP), True
    for name, template in ESCAPES.items():
        yield f"an escape of Jinja: {name}", "template", write("folder", "template.jinja", template), False
    for file in ("pytorch_model.bin", "consolidated.00.pth"):
        yield f"a pickle as {file}", "weights", in_place_of_weights(file, Scene.pickle), True
        yield f"a pickle of torch as {file}", "weights", in_place_of_weights(file, Scene.torch_pickle), True
        yield (
            f"a pickle of torch as {file}, to generate",
            "generate weights",
            in_place_of_weights(file, Scene.torch_pickle),
            True,
        )
    for file in ("config.json", "model.safetensors"):
        yield f"a link as {file} of weights", "weights", link("weights", file), True
        yield f"a pipe as {file} of weights", "weights", pipe("weights", file), True
    yield "a link as an overlay", "overlay", pipe("weights", "model.safetensors"), True
    yield "code beside a tokenizer", "tokenizer", foreign_code, True
    yield "a pickle as tokenizer.json", "tokenizer", write("weights", "tokenizer.json", Scene.pickle), True
    yield "deep JSON as tokenizer.json", "tokenizer", write("weights", "tokenizer.json", DEEP), True
    for command in ("sentencepiece", "llama3"):
        yield (
            f"a pickle as tokenizer.model of {command}",
            command,
            write("weights", "tokenizer.model", Scene.pickle),
            True,
        )


CASES = list(cases())


@contextmanager
def forbid_opening(path: Path, why: str) -> Iterator[None]:
    """Fails when anybody opens the file, in whatever language."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(IN_NONBLOCK)
    assert libc.inotify_add_watch(handle, os.fsencode(path), IN_OPEN | IN_MODIFY) >= 0, os.strerror(ctypes.get_errno())
    try:
        yield
        with suppress(BlockingIOError):
            raise AssertionError(f"{why}: {path} was opened ({len(os.read(handle, 4096))} bytes of events)")
    finally:
        os.close(handle)


@pytest.fixture(scope="module")
def template(runs: Any) -> Path:
    """What every scene is a copy of."""
    from safetensors.numpy import save_file

    folder: Path = runs.folder / "scene"
    truth = runs.truth(3)
    run = shutil.copytree(truth.run, folder / "deep" / "run")
    shutil.rmtree(run / "checkpoints" / "step-00000003")
    (run / LATEST).write_text("step-00000002\n")
    for name in ("loss.png", "completed"):
        (run / name).unlink()
    weights = folder / "deep" / "weights"
    weights.mkdir()
    import numpy as np

    (weights / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 272, "hidden_size": 16, "intermediate_size": 16,'
        ' "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}'
    )
    save_file({"a": np.zeros(1, dtype=np.float32)}, str(weights / "model.safetensors"))
    save_file({"a": np.ones(1, dtype=np.float32)}, str(folder / "outside.safetensors"))
    (folder / "prompts.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    return folder


def check(runs: Any, folder: Path, template: Path, chosen: list[Case]) -> None:
    """Two at a time, as two processors can."""
    for number in range(0, len(chosen), 2):
        with ExitStack() as watches:
            begun = [
                begin(runs, Scene(shutil.copytree(template, folder / f"{number}-{at}")), case, watches)
                for at, case in enumerate(chosen[number : number + 2])
            ]
            for scene, case, attempt in begun:
                judge(scene, case, attempt.wait(60), attempt)


def begin(runs: Any, scene: Scene, case: Case, watches: ExitStack) -> tuple[Scene, Case, Any]:
    case[2](scene)
    module, words = COMMANDS[case[1]](scene)
    if scene.outside.exists():
        watches.enter_context(forbid_opening(scene.outside, case[0]))
    return (
        scene,
        case,
        runs.start(
            words, module=f"{'mt_train' if module == 'train' else 'mt_tools'}.cli.{module}", folder=str(scene.folder)
        ),
    )


def judge(scene: Scene, case: Case, code: int, attempt: Any) -> None:
    what, command, _, must_refuse = case
    told = f"{what} ({command}): code {code}\n{attempt.err}{attempt.out}"
    assert not scene.canary.exists(), told
    assert "Traceback" not in attempt.err, told
    assert "error: unexpected" not in attempt.err, told
    assert code in (1, 2) if must_refuse else code in (0, 1, 2), told
    assert code == 0 or command == "verify" or attempt.err.count("error:") == 1, told


def test_there_are_canaries_enough() -> None:
    assert len(CASES[::3]) >= 40
    assert len({what + command for what, command, _, _ in CASES}) == len(CASES)


def test_no_canary_sings(runs: Any, template: Path, tmp_path: Path) -> None:
    """Every third, which takes all kinds; the soak has all."""
    check(runs, tmp_path, template, CASES[::3])


@pytest.mark.soak
def test_no_canary_sings_at_all(runs: Any, template: Path, tmp_path: Path) -> None:
    check(runs, tmp_path, template, CASES)


def test_a_canary_does_sing_where_a_pickle_is_executed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    pickle.loads(scene.pickle())
    assert scene.canary.exists()


def test_an_opened_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(AssertionError, match=r"a test: .* was opened"), forbid_opening(path, "a test"):
        path.read_text()
