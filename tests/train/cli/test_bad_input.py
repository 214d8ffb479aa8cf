"""Whatever is wrong: one clear message that says what to do, the right exit code, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mt_train.cli.train import main

LLAMA = ("--model", "llama")


@dataclass(frozen=True)
class Case:
    """A command line and what its one message has to contain. ``{tmp}`` is the test's folder."""

    name: str
    argv: tuple[str, ...]
    says: tuple[str, ...]
    code: int = 2


PAPER = [
    Case("no model", (), ("model: is required", "--model.weights FOLDER", "installed:", "llama")),
    Case("unknown model", ("--model", "lama"), ("no model named 'lama'", "Did you mean 'llama'?", "mt-plugin-llama")),
    Case("unknown size", (*LLAMA, "--model.variant", "tinny"), ("no size 'tinny'", "Did you mean 'tiny'?", "3.1-8b")),
    Case(
        "misspelt section", (*LLAMA, "--trian.steps", "3"), ("trian: no such slot or section", "Did you mean 'train'?")
    ),
    Case("misspelt key", (*LLAMA, "--train.stepps", "3"), ("train.stepps: no such key", "Did you mean 'steps'?")),
    Case("misspelt option of a model", (*LLAMA, "--model.n-layer", "3"), ("model.n-layer: no such key", "'n-layers'")),
    Case("wrong type", (*LLAMA, "--train.steps", "many"), ("train.steps: should be a valid integer", "got 'many'")),
    Case("no whole number", (*LLAMA, "--train.steps", "2.5"), ("train.steps", "integer", "got 2.5")),
    Case("out of bounds", (*LLAMA, "--model.dropout", "1.5"), ("model.dropout", "less than", "got 1.5")),
    Case("none of the choices", (*LLAMA, "--train.dtype", "fp8"), ("train.dtype", "'bf16'", "got 'fp8'")),
    Case("bad stage", (*LLAMA, "--parallel.zero-stage", "4"), ("parallel.zero-stage", "got 4")),
    Case(
        "several at once",
        (*LLAMA, "--train.steps", "0", "--model.dim", "x", "--optimizer", "adamww", "--nothing.at", "1"),
        ("4 faults", "train.steps", "model.dim", "Did you mean 'adamw'?", "nothing"),
    ),
    Case(
        "heads that do not divide", (*LLAMA, "--model.n-kv-heads", "3"), ("n_heads=4", "n_kv_heads=3", "set n_kv_heads")
    ),
    Case(
        "row over context",
        (*LLAMA, "--train.sequence-len", "4096"),
        ("4096", "max_seq_len of 512", "--train.sequence-len 512"),
    ),
    Case(
        "sample over row",
        (*LLAMA, "--data.max-len", "999"),
        ("data.max-len", "train.sequence_len=256", "Set --data.max-len"),
    ),
    Case(
        "steps and epochs", (*LLAMA, "--train.steps", "1", "--train.epochs", "1"), ("steps=1 and epochs=1", "keep one")
    ),
    Case(
        "a pace given twice",
        (*LLAMA, "--eval.every-steps", "5", "--eval.every-epochs", "1"),
        ("eval: every_steps=5 and every_epochs=1 are both set", "keep one"),
    ),
    Case(
        "an option of DeepSpeed's that the run says",
        (*LLAMA, "--parallel.deepspeed", "{zero_optimization: {stage: 2}}"),
        ("parallel.deepspeed", "stage is for the run to say", "set parallel.zero_stage"),
    ),
    Case(
        "no option of DeepSpeed's",
        (*LLAMA, "--parallel.deepspeed.zero-optimization.reduce-buckets", "2"),
        ("no such key", "Did you mean 'reduce-bucket-size'?"),
    ),
    Case(
        "scales of a loss that has none",
        (*LLAMA, "--parallel.deepspeed.fp16.hysteresis", "2"),
        ("parallel.deepspeed.fp16: only fp16 scales", "--train.dtype fp16"),
    ),
    Case(
        "offload without ZeRO",
        (*LLAMA, "--parallel.zero-stage", "0", "--parallel.offload", "optimizer"),
        ("needs ZeRO", "1, 2 or 3"),
    ),
    Case("nothing held out", (*LLAMA, "--data.eval", "0"), ("data.eval", "greater than 0")),
    Case("missing name", ("--model",), ("--model needs a name",)),
    Case("stray word", (*LLAMA, "tiny"), ("unexpected argument 'tiny'", "--key value")),
    Case(
        "given twice",
        (*LLAMA, "--train.steps", "1", "--train.steps", "2"),
        ("--train.steps is given twice", "keep one"),
    ),
    Case("switch with a value", (*LLAMA, "--overwrite=yes"), ("--overwrite takes no value",)),
    Case("unreadable value", (*LLAMA, "--data.columns", "{a: "), ("data.columns", "as YAML", "quote")),
    Case("no config file", ("--config", "{tmp}/none.yaml"), ("cannot read the config", "none.yaml", "check the path")),
    Case("config with a key twice", ("--config", "{tmp}/twice.yaml"), ("twice.yaml:3", "'steps' is written twice")),
    Case("config that is no YAML", ("--config", "{tmp}/broken.yaml"), ("broken.yaml:3", "not valid YAML")),
    Case("config that is a list", ("--config", "{tmp}/list.yaml"), ("a config is a mapping", "list")),
    Case("weights that are not there", (*LLAMA, "--model.weights", "{tmp}/none"), ("model.weights", "does not exist")),
    Case("a run as weights", (*LLAMA, "--model.weights", "earlier"), ("It is a run", "--run earlier", "mt-convert")),
    Case("an adapter as weights", ("--model.weights", "adapter"), ("It is an adapter", "--adapter.weights adapter")),
    Case("weights as a run", ("--resume", "model"), ("holds no checkpoint", "as --model.weights"), code=1),
    Case("rows without their option", (*LLAMA, "long.jsonl"), ("unexpected argument", "--dataset.path long.jsonl")),
    Case("weights without their option", ("model",), ("unexpected argument", "--model.weights model")),
    Case("a config without its option", ("broken.yaml",), ("unexpected argument", "--config broken.yaml")),
    Case(
        "a component as a key",
        (*LLAMA, "--schedule.constant"),
        ("schedule.constant: no such key", "--schedule constant."),
    ),
    Case(
        "a word of the command in a file",
        ("--config", "command.yaml"),
        ("It is no key of a config", "--output.", "line 1"),
    ),
    Case(
        "a component by another program's name",
        (*LLAMA, "--optimizer", "adamw_torch"),
        ("It is --optimizer adamw here",),
    ),
    Case("weights of no format", (*LLAMA, "--model.weights", "{tmp}"), ("in no format that llama reads",)),
    Case(
        "bad process count",
        (*LLAMA, "--nproc-per-node", "two"),
        ("--nproc-per-node", "a number from 1 to 100,000, or auto", "'two'"),
    ),
    Case("output with resume", ("--resume", "{tmp}", "--output", "x"), ("leave out --output",)),
    Case("resume auto without output", (*LLAMA, "--resume", "auto"), ("--output FOLDER",)),
    Case(
        "resume auto with overwrite",
        (*LLAMA, "--resume", "auto", "--output", "{tmp}", "--overwrite"),
        ("no --overwrite",),
    ),
    Case("unknown name of a path", (*LLAMA, "--dataset.path", "@wiki/x"), ("@wiki", "MT_PATHS", "@@")),
    Case(
        "a secret in the config",
        (*LLAMA, "--dataset", "text", "--dataset.path", "https://me:hunter22@host/x"),
        ("dataset.path: looks like a secret", "environment"),
    ),
    Case(
        "columns without a space",
        (*LLAMA, "--data.columns", "{prompt:question}"),
        ("data.columns", "'prompt:question' is read as one word", "a space after each colon"),
    ),
    Case("no time", (*LLAMA, "--train.max-minutes", "0"), ("train.max-minutes", "greater than 0")),
    Case("seeds that are no numbers", (*LLAMA, "--train.seeds", "1,x"), ("whole numbers", "1,2,3")),
    Case("a seed twice", (*LLAMA, "--train.seeds", "1,1"), ("each seed once",)),
    Case("seed and seeds", (*LLAMA, "--train.seeds", "1,2", "--train.seed", "3"), ("both set", "keep one")),
    Case("seeds without a folder", (*LLAMA, "--train.seeds", "1,2", "--output", "none"), ("no --output none",)),
    Case("config that is no JSON", ("--config", "{tmp}/broken.json"), ("broken.json:1:", "not valid JSON")),
    Case("JSON with a key twice", ("--config", "{tmp}/twice.json"), ("twice.json", "'steps' stands twice")),
    Case("resume of nothing", ("--resume", "{tmp}/none"), ("none does not exist", "give a run's folder"), 1),
    Case("existing output", (*LLAMA, "--output", "{tmp}"), ("is not empty", "--overwrite", "another --output"), 1),
    Case("output that is a file", (*LLAMA, "--output", "{tmp}/twice.yaml"), ("is a file",), 1),
    Case("unwritable output", (*LLAMA, "--output", "{tmp}/twice.yaml/x"), ("cannot be written", "another --output"), 1),
    Case(
        "overwriting a stranger's folder",
        (*LLAMA, "--output", "{tmp}", "--overwrite"),
        ("no run wrote", "twice.yaml"),
        1,
    ),
]
"""Faults that are found before torch is loaded."""

TEXT = (*LLAMA, "--dataset", "text", "--dataset.path")
JSONL = (*LLAMA, "--dataset", "jsonl", "--dataset.path")
SFT = (*LLAMA, "--objective", "sft", "--dataset", "jsonl", "--dataset.path")
ROWS = [
    Case("missing text", (*TEXT, "{tmp}/none.txt"), ("none.txt", "does not exist"), 1),
    Case("empty text", (*TEXT, "{tmp}/empty.txt"), ("empty.txt",), 1),
    Case("text that is not UTF-8", (*TEXT, "{tmp}/latin.txt"), ("latin.txt", "UTF-8"), 1),
    Case("malformed row", (*JSONL, "{tmp}/malformed.jsonl"), ("malformed.jsonl:2",), 1),
    Case("row that is no object", (*JSONL, "{tmp}/list.jsonl"), ("list.jsonl:", "object"), 1),
    Case("row that is not UTF-8", (*JSONL, "{tmp}/latin.jsonl"), ("latin.jsonl:2", "UTF-8"), 1),
    Case("row with another field", (*JSONL, "{tmp}/fields.jsonl"), ("fields.jsonl:", "'text'", "data.columns"), 1),
    Case("row that is no text", (*JSONL, "{tmp}/number.jsonl"), ("number.jsonl:1", "text"), 1),
    Case("no rows", (*JSONL, "{tmp}/empty.jsonl"), ("empty.jsonl",), 1),
    Case(
        "columns that are not there",
        (*JSONL, "{tmp}/fields.jsonl", "--data.columns", "{text: boddy}"),
        ("fields.jsonl:", "Did you mean 'body'?"),
        1,
    ),
    Case("pretraining rows for sft", (*SFT, "{tmp}/good.jsonl"), ("good.jsonl:1", "prompt", "data.columns"), 1),
    Case(
        "long row for sft", (*SFT, "{tmp}/long.jsonl"), ("long.jsonl:1", "tokens exceed data.max_len=256", "split"), 1
    ),
    Case(
        "held out more than there is", (*JSONL, "{tmp}/good.jsonl", "--data.eval", "9"), ("holds out 9 of 3 rows",), 1
    ),
    Case(
        "tokenizer over embedding",
        (*LLAMA, "--model.vocab-size", "100"),
        ("259 tokens", "100 rows", "--model.vocab-size 259"),
        2,
    ),
    Case("fp16 on a CPU", (*LLAMA, "--train.dtype", "fp16"), ("fp16 does not train on a CPU", "fp32 or bf16"), 2),
    Case(
        "stages on one process",
        (*LLAMA, "--parallel.pipeline", "2"),
        ("1 rank does not divide into 2 stages", "--nproc-per-node 2"),
        2,
    ),
    Case(
        "batch that does not divide",
        (*LLAMA, "--train.global-batch-size", "12"),
        ("12 rows", "× 8 rows", "--train.global-batch-size 8"),
        2,
    ),
]
"""Faults of rows, and of the device."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files: dict[str, str | bytes] = {
        "earlier/run.yaml": "model: llama\n",
        "adapter/adapter_config.json": "{}",
        "model/config.json": "{}",
        "command.yaml": "output: runs/mine\nmodel: llama\n",
        "twice.yaml": "model: llama\ntrain:\n  {steps: 1, steps: 2}\n",
        "broken.yaml": "model: llama\ntrain: [1, 2\n",
        "list.yaml": "- 1\n",
        "broken.json": '{"model": ',
        "twice.json": '{"train": {"steps": 1, "steps": 2}}',
        "empty.txt": "",
        "latin.txt": "caf\xe9".encode("latin-1"),
        "malformed.jsonl": '{"text": "a"}\n{"text": "b"\n',
        "list.jsonl": "[1, [2]]\n",
        "latin.jsonl": b'{"text": "a"}\n{"text": "caf\xe9"}\n',
        "fields.jsonl": '{"body": "a"}\n{"body": "b"}\n',
        "number.jsonl": '{"text": 5}\n{"text": "a"}\n',
        "empty.jsonl": "",
        "good.jsonl": '{"text": "a b"}\n{"text": "b c"}\n{"text": "c d"}\n',
        "long.jsonl": "".join(json.dumps({"prompt": "p", "response": "r" * 500}) + "\n" for _ in range(3)),
    }
    for folder in ("earlier", "adapter", "model"):
        (tmp_path / folder).mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


def check(case: Case, code: int, error: str) -> None:
    assert code == case.code, (case.name, code, error)
    message = error[error.rindex("error: ") :]
    for words in case.says:
        assert words in message, (case.name, words, message)
    assert "Traceback" not in error
    assert "--debug shows where" not in message, "a fault of the user's is no surprise of ours"


@pytest.mark.parametrize("case", [*PAPER, *ROWS], ids=lambda case: case.name)
def test_a_fault_gets_one_clear_message(
    case: Case, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code = main([word.replace("{tmp}", str(folder)) for word in case.argv])
    check(case, code, capsys.readouterr().err)


POISON = """
import json, sys
class Poison:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('torch', 'transformers', 'deepspeed'):
            raise AssertionError(f'{name} was imported')
sys.meta_path.insert(0, Poison())
from mt_train.cli.train import main
for argv in json.loads(sys.argv[1]):
    print('code', main(argv), file=sys.stderr)
"""


def test_faults_on_paper_are_found_before_torch_is_imported(folder: Path) -> None:
    lines = [[word.replace("{tmp}", str(folder)) for word in case.argv] for case in PAPER]
    result = subprocess.run(
        [sys.executable, "-c", POISON, json.dumps(lines)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
    )
    parts = result.stderr.split("code ")
    assert len(parts) == len(PAPER) + 1, result.stderr
    for case, text, following in zip(PAPER, parts, parts[1:], strict=False):
        check(case, int(following.split()[0]), text)


@pytest.mark.parametrize("debug", [True, False])
def test_a_traceback_is_shown_with_debug_only_and_always_in_the_log(debug: bool, folder: Path) -> None:
    words = [*JSONL, str(folder / "malformed.jsonl"), "--output", "run", *(["--debug"] if debug else [])]
    line = [sys.executable, "-m", "mt_train.cli.train", *words]
    result = subprocess.run(
        line, capture_output=True, text=True, cwd=folder, timeout=300, check=False, env={**os.environ}
    )
    assert result.returncode == 1
    assert ("Traceback" in result.stderr) == debug
    assert "Traceback" in (folder / "run" / "logs" / "rank-0.log").read_text()


def test_two_processes_report_one_fault_once(folder: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "mt_train.cli.train",
        *JSONL,
        str(folder / "malformed.jsonl"),
        "--nproc-per-node",
        "2",
    ]
    result = subprocess.run(line, capture_output=True, text=True, cwd=folder, timeout=500, check=False)
    assert result.returncode == 1
    assert result.stderr.count("malformed.jsonl:2") == 1, result.stderr
