"""Configs and command lines as people and programs get them wrong: valid ones with some damage, and what a command does with them.

``python tests/train/cli/odd_inputs.py KIND COUNT [SEED]`` runs many and prints what each class of end was; KIND is one of ``KINDS``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
SECONDS = int(os.environ.get("MT_ODD_SECONDS", "10"))
"""No command that only checks may take longer; a machine that is busy with other things needs more."""

PAGES = ("README.md", "docs/callbacks.md", "docs/from-llama-factory.md")
MODEL = {"name": "llama", "n_layers": 1, "dim": 16, "n_heads": 2, "n_kv_heads": 1, "ffn_dim": 32}

VALUES: tuple[Any, ...] = (
    *(
        None,
        "",
        " ",
        0,
        -1,
        1,
        2,
        3,
        True,
        False,
        0.5,
        -0.0,
        1e-300,
        1e300,
        float("inf"),
        float("nan"),
        2**31,
        2**63,
        10**19,
        10**400,
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"a": {"b": {"c": 1}}},
        [1, "a", None],
        ["lora", "dora"],
        {"name": None},
        {"name": "x"},
    ),
    *(
        "none",
        "null",
        "auto",
        "llama",
        "lora",
        "all",
        "-1",
        "1e5",
        "1_000",
        "0x1f",
        "1:30",
        "2026-13-45",
        "0b_",
        "=",
        "*",
        "<<",
        "yes",
    ),
    *(
        "@data/x",
        "@@x",
        "@",
        "~nobody-here/x",
        "~",
        "/",
        ".",
        "..",
        "/dev/null",
        "a/b@c",
        "x" * 5000,
        "x" * 300,
        "\u0000",
        "\ud800",
        "\u202e",
    ),
    *(
        "{{ 1/0 }}",
        "{% for %}",
        "{{ x",
        "{file: nowhere}",
        "naïve 日本",
        "%s %d {}",
        "²",
        "٣",
        "\t",
        "a\nb",
        "--",
        "$(x)",
        "\\",
        "'",
        '"',
    ),
)
SNIPPETS = (
    *(
        b"\0",
        b'"',
        b"{",
        b"]",
        b",",
        b"\xff\xfe",
        b"\\",
        b"\r",
        b"[" * 3000,
        b"&a ",
        b"*a",
        b"!!int ",
        b"!!binary ",
        b"? ",
        b"<<: *a",
    ),
    *(
        b"2026-13-45",
        b"0b_",
        b"9" * 5000,
        b"\n---\n",
        b"!!python/object:os.system ",
        b": ",
        b"- ",
        b"\t",
        b"#",
        b"|\n",
        b">",
        b"%YAML 9",
        b".inf",
    ),
)

Tree = dict[str, Any]


def examples() -> list[Tree]:
    """Every config that the repository shows, and one of each kind of component."""
    found: list[Tree] = [yaml.safe_load((ROOT / "tests/golden/run/run.yaml").read_text())]
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
            found += [each for each in yaml.safe_load_all(block) if isinstance(each, dict)]
        for block in re.findall(r"\.yaml <<'END'\n(.*?)\nEND", (ROOT / page).read_text(), re.DOTALL):
            found.append(yaml.safe_load(block))
    rows = {"name": "jsonl", "path": "rows.jsonl"}
    more: list[Tree] = [
        {
            "adapter": {"name": "lora", "rank": 2, "targets": ["*.q_proj"]},
            "callbacks": {"ema": {"decay": 0.9}},
            "trackers": ["csv"],
        },
        {"adapter": "dora", "optimizer": {"name": "muon"}, "schedule": "constant", "task_print": "loss"},
        {
            "dataset": {"name": "mix", "parts": {"a": {**rows, "weight": 1}, "b": {"name": "demo"}}},
            "parallel": {"zero_stage": 2},
        },
        {
            "objective": "sft",
            "dataset": rows,
            "data": {"columns": {"prompt": "question"}, "eval": 2, "template": "chatml"},
        },
        {
            "tokenizer": {"name": "byte"},
            "quantizer": "none",
            "eval": {"every_steps": 2},
            "checkpoint": {"best": "eval_loss:min"},
        },
        {
            "train": {"steps": 3, "seeds": "1,2", "max_minutes": 5, "enable": ["*norm*"], "dtype": "auto"},
            "log": {"every_steps": 1},
        },
        {
            "parallel": {"deepspeed": {"zero_optimization": {"reduce_bucket_size": 5e8}}, "pipeline": 1},
            "data": {"batching": "packing"},
        },
    ]
    few = {"data": {"read_rows": 20}, "model": MODEL}
    return [
        few | each | ({"model": MODEL} if not isinstance(each.get("model"), dict) else {}) for each in (*found, *more)
    ]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def inside(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def misspell(key: str, chance: random.Random) -> str:
    place = chance.randrange(len(key) + 1)
    return chance.choice(
        [
            key[:place] + key[place + 1 :],
            key[:place] + "x" + key[place:],
            key.upper(),
            key.replace("_", "-"),
            "",
            f"{key}.{key}",
            "name",
        ]
    )


def mutate(tree: Tree, chance: random.Random, *, all_of: Sequence[Tree]) -> Tree:
    """One to four faults of structure: another value, none, a misspelt key, a key of another place, a value in a list."""
    tree = deepcopy(tree)
    for _ in range(chance.randint(1, 4)):
        found = list(places(tree))
        if not found:
            break
        *way, last = chance.choice(found)
        parent, kind = inside(tree, way), chance.randrange(8)
        if kind <= 2:
            parent[last] = deepcopy(chance.choice(VALUES))
        elif kind == 3:
            del parent[last]
        elif kind == 4 and isinstance(parent, dict):
            parent[misspell(str(last), chance)] = parent.pop(last)
        elif kind == 5:
            parent[last] = [parent[last], parent[last]] if chance.random() < 0.5 else {"name": parent[last]}
        elif kind == 6:
            other = chance.choice(all_of)
            parent[last] = deepcopy(inside(other, chance.choice(list(places(other)))))
        elif isinstance(parent, dict):
            parent[chance.choice(("name", "path", "variant", "weights", "rank", "lr", "steps", "none", "0", "a b"))] = (
                chance.choice(VALUES)
            )
    return tree


def damage(content: bytes, chance: random.Random) -> bytes:
    """One to eight faults of bytes."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        place, size, kind = chance.randrange(len(data) + 1), chance.randint(1, 16), chance.randrange(6)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[place : place + size]
        elif kind == 2:
            data[place:place] = data[place : place + size]
        elif kind in (3, 4):
            data[place:place] = chance.choice(SNIPPETS)
        else:
            data[place : place + size] = chance.randbytes(size)
    return bytes(data)


def config_file(folder: Path, chance: random.Random, all_of: Sequence[Tree]) -> Path:
    """A config with faults, as YAML or JSON."""
    tree = mutate(chance.choice(all_of), chance, all_of=all_of)
    is_json = chance.random() < 0.4
    path = folder / ("odd.json" if is_json else "odd.yaml")
    try:
        text = json.dumps(tree) if is_json else yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    except (
        ValueError,
        TypeError,
        yaml.YAMLError,
    ):  # a number of 400 digits in JSON is fine; a key that is a list is not
        text = repr(tree)
    content = text.encode("utf-8", "backslashreplace")
    if chance.random() < 0.3:
        content = damage(content, chance)
    elif chance.random() < 0.03:
        content = chance.randbytes(chance.randrange(200))
    path.write_bytes(content)
    return path


@dataclass(frozen=True)
class End:
    """How a command ended: its code, or what it raised, and what it said on standard error."""

    code: Any
    said: str
    debug: bool = False
    """Whether tracebacks were asked for."""

    @property
    def fault(self) -> str:
        """What must not be: a traceback, a surprise, another code, no end."""
        if self.code not in (0, 1, 2):
            return f"ended with {self.code!r}"
        if (
            ("Traceback" in self.said and not self.debug)
            or "--debug shows where" in self.said
            or re.search(r"unexpected \w+(Error|Exception)\b", self.said)
        ):
            return "a surprise"
        if self.code and not self.said.strip():
            return "no word"
        return ""

    @property
    def kind(self) -> str:
        """A word for the class of the end, for counting."""
        last = self.said[self.said.rfind("error:") :] if "error:" in self.said else self.said
        return f"{self.code}: " + re.sub(r"'[^']*'|\"[^\"]*\"|[\d,.]+|/\S+", "…", last.strip()[:110]).replace(
            "\n", " | "
        )


class EndlessCommand(BaseException):
    """The command took too long."""


def run(main: Callable[[list[str]], int], words: Sequence[str]) -> End:
    """Run a command here, with nothing on standard input."""

    def late(number: int, frame: Any) -> None:
        raise EndlessCommand

    said, before, stdin = io.StringIO(), signal.signal(signal.SIGALRM, late), sys.stdin
    signal.alarm(SECONDS)
    sys.stdin = io.StringIO("")
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
            code: Any = main(list(words))
    except SystemExit as error:  # argparse
        code = error.code or 0
    except EndlessCommand:
        code = f"no end within {SECONDS} s"
    except BaseException as error:  # noqa: BLE001 - what this is here to find
        import traceback

        code = f"{type(error).__name__}: {error} at {traceback.extract_tb(error.__traceback__)[-1]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.stdin = stdin
    return End(code, said.getvalue(), debug="--debug" in words)


# Command lines

ODD_WORDS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1",
        "2",
        "1e400",
        "nan",
        "inf",
        "²",
        "٣",
        "9" * 5000,
        "none",
        "null",
        "auto",
        "all",
        "last",
        "best",
        "a,b",
        ",",
        "a=b:c",
    ),
    *(
        ".",
        "/",
        "..",
        "nowhere",
        "run",
        "run/checkpoints",
        "empty",
        "empty.jsonl",
        "rows.jsonl",
        "folder",
        "hf",
        "adapter",
        "bytes.bin",
        "run:0.5",
    ),
    *(
        "run:x",
        "run:",
        "/dev/null",
        "~nobody-here/x",
        "@x",
        "@",
        "--",
        "-",
        "=",
        "x" * 5000,
        "\ud800",
        "naïve 日本",
        "{",
        "[",
        "{a: b}",
        "[1, 2]",
    ),
    *(
        "{a: ",
        "'",
        '"',
        "*.jsonl",
        "2026-13-45",
        "0b_",
        "[" * 500,
        "!!binary x",
        "5GB",
        "0GB",
        "fp16",
        "llama",
        "lora",
        "jsonl",
        "x=jsonl:rows.jsonl",
    ),
)
TRAIN_KEYS = (
    *(
        "--config",
        "--model",
        "--model.variant",
        "--model.n-layers",
        "--model.weights",
        "--model.overlay",
        "--adapter",
        "--adapter.rank",
        "--dataset",
    ),
    *(
        "--dataset.path",
        "--objective",
        "--tokenizer",
        "--tokenizer.path",
        "--optimizer",
        "--optimizer.lr",
        "--schedule",
        "--task-print",
    ),
    *(
        "--callbacks",
        "--callbacks.ema.decay",
        "--trackers",
        "--quantizer",
        "--data.columns",
        "--data.template",
        "--data.eval",
        "--data.cache",
    ),
    *(
        "--data.system",
        "--data.max-len",
        "--train.steps",
        "--train.epochs",
        "--train.seed",
        "--train.seeds",
        "--train.sequence-len",
    ),
    *(
        "--train.micro-batch-size",
        "--train.global-batch-size",
        "--train.dtype",
        "--train.enable",
        "--parallel.zero-stage",
        "--parallel.pipeline",
    ),
    *(
        "--parallel.sequence",
        "--parallel.deepspeed",
        "--eval.samples",
        "--eval.every-steps",
        "--checkpoint.best",
        "--log.every-steps",
    ),
    *(
        "--output",
        "--resume",
        "--nproc-per-node",
        "--nnodes",
        "--profile",
        "--plot",
        "--block-plugin",
        "--json",
        "--overwrite",
        "--train",
        "--data",
    ),
)
ARGPARSE = re.compile(r"--[a-z][a-z-]+")


def commands() -> dict[str, tuple[Callable[[list[str]], int], list[list[str]], tuple[str, ...]]]:
    """Command → its entry point, what a line begins with, and the options that may follow."""
    from mt_core.cli import plugins
    from mt_plugin_search import command as search
    from mt_tools.cli import checkpoint, convert, data, eval, export, generate, report
    from mt_train.cli import train

    def options(parser: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(ARGPARSE.findall(parser.format_help())))

    model = ["--model", "llama", "--model.n-layers", "1"]
    rows = ["--dataset", "jsonl", "--dataset.path", "rows.jsonl"]
    prompt = ["--prompt", "The ", "--max-new-tokens", "2"]
    train_starts = [
        ["--print-config"],
        ["--print-config", *model],
        ["--dry-run", *model],
        ["--dry-run", *model, *rows],
        ["--help"],
    ]
    convert_words = ("--model", "--dtype", "--shard-size", "--block-plugin", "--version", "--help")
    vocabulary = (
        "--add-tokens",
        "--add-special-tokens",
        "--tokens-file",
        "--pad-token",
        "--init",
        "--multiple",
        "--seed",
    )
    return {
        "mt-train": (train.main, train_starts, TRAIN_KEYS),
        "mt-data": (
            data.main,
            [
                ["inspect"],
                ["inspect", *rows],
                ["build", *model, *rows],
                ["clean"],
                ["clean", "--older-than", "3"],
                [],
                ["--help"],
            ],
            (*TRAIN_KEYS, "--examples", "--html", "--older-than", "--yes"),
        ),
        "mt-generate": (
            generate.main,
            [
                ["--run", "run", *prompt],
                prompt,
                ["--run", "run", "--prompts", "prompts.jsonl", "--out", "out.jsonl"],
                ["--run", "run", "--chat"],
            ],
            options(generate._parser()),
        ),
        "mt-eval": (
            eval.main,
            [["--run", "run", "--output", "none"], ["--weights", "hf", "--model", "llama", *rows], []],
            (
                "--run",
                "--checkpoints",
                "--weights",
                "--adapter-folder",
                "--averaged",
                "--on",
                "--predictions",
                *TRAIN_KEYS,
            ),
        ),
        "mt-export": (export.main, [["--run", "run", "--output", "exported"], []], options(export._parser())),
        "mt-convert": (
            convert.main,
            [
                ["run", "converted"],
                ["hf", "converted"],
                ["resize-vocab", "hf", "converted"],
                ["delta", "make", "hf", "hf", "converted"],
                ["delta", "apply"],
                ["merge-vocab", "a.model", "b.model"],
                ["delta"],
                [],
            ],
            (*convert_words, *vocabulary),
        ),
        "mt-checkpoint": (
            checkpoint.main,
            [["list", "run"], ["verify", "run"], ["prune", "run", "--dry-run"], ["list"], []],
            ("--json", "--keep-last", "--keep-best", "--dry-run", "--help", "--version"),
        ),
        "mt-report": (
            report.main,
            [["run", "--output", "page.html", "--overwrite"], ["run", "run"], []],
            ("--output", "--overwrite", "--help"),
        ),
        "mt-plugins": (
            plugins.main,
            [["list"], ["info"], ["info", "llama"], ["check"], ["new", "dataset"], ["new"], ["freeze", "run"], []],
            ("--json", "--components", "--strict", "--block-plugin", "--output", "--help"),
        ),
        "mt-search": (
            search.main,
            [["--dry-run", *model, "--search.optimizer.lr", "log:1e-5..1e-3"], ["--dry-run", *model], ["--dry-run"]],
            (
                *TRAIN_KEYS,
                "--search.optimizer.lr",
                "--search.train.micro-batch-size",
                "--search.optimizer",
                "--space",
                "--metric",
                "--trials",
                "--sampler",
                "--seed",
                "--prune",
                "--prune-after",
                "--prune-from",
                "--search",
                "--search.x",
            ),
        ),
    }


STARTS_SOMETHING = ("install", "uninstall")


def line(starts: Sequence[Sequence[str]], options: Sequence[str], chance: random.Random) -> list[str]:
    """A command line with zero to four odd options at any place."""
    words = list(chance.choice(starts))
    for _ in range(chance.randrange(5)):
        option = chance.choice(options)
        if chance.random() < 0.1:
            option = "--" + misspell(option[2:], chance)
        value = chance.choice(ODD_WORDS)
        new = chance.choice(
            [[option, value], [option, value], [option, value], [f"{option}={value}"], [option], [value]]
        )
        place = chance.choice([len(words), len(words), chance.randrange(len(words) + 1)])
        words[place:place] = new
    return words


def configs(count: int, seed: int, folder: Path, *, dry_runs: bool = True) -> Iterator[tuple[str, End]]:
    """``mt-train`` with a config that has faults; every eighth is a dry run, which builds what the config asks for."""
    from mt_train.cli.train import main

    chance, all_of = random.Random(seed), examples()
    for number in range(count):
        path = config_file(folder, chance, all_of)
        content = path.read_bytes()
        mode = "--dry-run" if dry_runs and number % 8 == 0 else "--print-config"
        yield f"{mode} {content[:3000]!r}", run(main, ["--config", str(path), mode])


def lines(count: int, seed: int, folder: Path, only: str = "") -> Iterator[tuple[str, End]]:
    """Command lines of every command in turn."""
    chance, all_of = random.Random(seed), {name: each for name, each in commands().items() if only in name}
    for number in range(count):
        name, (main, starts, options) = list(all_of.items())[number % len(all_of)]
        words = line(starts, options, chance)
        if name == "mt-train" and not {"--dry-run", "--print-config", "--help"} & set(words):
            words.append("--print-config")
        if name == "mt-search" and "--dry-run" not in words:
            words.append("--dry-run")
        if any(word in words for word in STARTS_SOMETHING):
            continue
        yield f"{name} {words!r}"[:3000], run(main, words)


@contextlib.contextmanager
def plugins_loaded_once() -> Iterator[None]:
    """Inside, a command that wants the same plugins as another gets the same host, which takes the longest of most commands."""
    from mt_core.plugins.host import PluginHost

    discover = PluginHost.discover
    known: dict[Any, PluginHost] = {}

    def once(selection: Any = None, more: Sequence[Any] = ()) -> PluginHost:
        assert not more, "modules are no part of what is known"
        if selection not in known:
            known[selection] = discover(selection)
        host = known[selection]  # a command may add to what it has
        return PluginHost([replace(each, offers=list(each.offers)) for each in host.plugins], list(host.unused_names))

    PluginHost.discover = once  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        PluginHost.discover = discover  # type: ignore[method-assign]


def prepare(folder: Path) -> None:
    """What the lines name: a run, a Hugging Face folder, an adapter, rows, prompts, and what is none of these."""
    from mt_tools.cli.export import main as export
    from mt_train import train

    rows = [{"prompt": f"What is {n} + {n}? ", "response": str(2 * n), "text": f"{n} and {n}"} for n in range(12)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "prompts.jsonl").write_text('{"prompt": "The "}\n{"prompt": "A "}\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "bytes.bin").write_bytes(random.Random(0).randbytes(500))
    for name in ("empty", "folder"):
        (folder / name).mkdir()
    (folder / "folder" / "a.txt").write_text("text\n")
    raw = {
        "model": MODEL,
        "train": {"steps": 2, "micro_batch_size": 2, "sequence_len": 32},
        "eval": {"every_steps": 1, "samples": 0},
    }
    raw |= {
        "adapter": {"name": "lora", "rank": 2},
        "dataset": {"name": "jsonl", "path": "rows.jsonl"},
        "checkpoint": {"every_steps": 1},
        "log": {"console_level": "error"},
    }
    train(raw, output=folder / "run")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert export(["--run", str(folder / "run"), "--merge", "--output", str(folder / "hf")]) == 0
        assert export(["--run", str(folder / "run"), "--output", str(folder / "adapter")]) == 0


KINDS: dict[str, Callable[[int, int, Path], Iterator[tuple[str, End]]]] = {"configs": configs, "lines": lines}


def explore(kind: str, count: int, seed: int = 0) -> None:
    """Run many, and print each class of end with how often it came, the faults first."""
    import tempfile
    import time

    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name, plugins_loaded_once():
        os.chdir(name)
        os.environ["MT_CACHE"] = f"{name}/cache"
        if kind != "configs":
            prepare(Path(name))
        ends, slowest = Counter[str](), (0.0, "")
        kind, _, only = kind.partition(":")
        more = {"only": only} if only else {}
        began = time.monotonic()
        for what, end in KINDS[kind](count, seed, Path(name), **more):
            now = time.monotonic()
            slowest, began = max(slowest, (now - began, what)), now
            ends[end.kind] += 1
            if sum(ends.values()) % 100 == 0:
                print(f"{sum(ends.values())} after {time.process_time():.0f} s of the processor", flush=True)
            if end.fault:
                print(f"FAULT {end.fault}\n  {what}\n  {end.said[-600:]}", flush=True)
    for text, number in ends.most_common(60):
        print(f"{number:>6}  {text}")
    print(f"slowest: {slowest[0]:.1f} s for {slowest[1]}")


if __name__ == "__main__":
    explore(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
