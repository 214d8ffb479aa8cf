"""Prompts of online objectives: each answer is scored with the row of its prompt, ends as a turn does, and fits into a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mt_tools.cli.convert import main as mt_convert
from mt_train.cli.train import main

SIZES = "--model.dim 16 --model.n-layers 1 --model.n-heads 2 --model.n-kv-heads 2"
ASKED = "--objective.prompts 4 --objective.group 2 --train.steps 1"
SHORT = f"{ASKED} --objective.max-new-tokens 4"
LETTERS = "--rewards pattern --rewards.pattern.pattern e"
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
END = "<|im_end|>"
Train = Callable[[str], tuple[int, str]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """``mt-train`` in an empty folder: the exit code, and all that was printed. The run is ``run`` where the words do not say."""
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> tuple[int, str]:
        usual = {"--model": "llama", "--data.cache": "none", "--output": "run"}
        unsaid = " ".join(f"{option} {value}" for option, value in usual.items() if option not in words.split())
        code = main(f"{unsaid} {words}".split())
        written = capsys.readouterr()
        return code, " ".join((written.out + written.err).split())

    return run


def write(file: str, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows, and return the words that name them."""
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"--dataset jsonl --dataset.path {file}"


def answers(run: str = "run") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "rollouts.jsonl").read_text().splitlines()]


def prompts(*lengths: int) -> list[dict[str, Any]]:
    """Prompts of so many letters, one token each, and one that begins them."""
    return [{"prompt": "a" * length} for length in lengths]


# ------------------------------------------------------------------------------------------------------------------ rows


def test_an_answer_is_scored_with_the_row_of_its_prompt(train: Train) -> None:
    """A row of C3 has several questions on one text."""
    options = ["one", "two", "three"]
    asked = [[{"question": f"{n} {o}?", "choice": options, "answer": o} for o in options] for n in range(2)]
    Path("c3.json").write_text(json.dumps([[[f"text {n}"], each, str(n)] for n, each in enumerate(asked)]))
    Path("mine.py").write_text(
        "def score(answers):\n"
        "    return [float(bytes(each.prompt_ids[1:]).decode() == each.row['prompt']) for each in answers]\n"
    )
    words = (
        f"{SIZES} --dataset c3 --dataset.path c3.json --data.eval none --rewards python --rewards.python.path mine.py"
    )
    code, said = train(f"--objective grpo {words} {SHORT.replace('prompts 4', 'prompts 6')}")
    assert code == 0, said
    assert [each["rewards"]["python"] for each in answers()] == [1.0] * 12
    assert len({each["row_id"] for each in answers()}) == 6


def test_prompts_beside_a_bad_row_are_answered(train: Train) -> None:
    rows = write("rows.jsonl", prompts(1, 2, 3, 4))
    Path("rows.jsonl").write_text('{"prompt": \n' + Path("rows.jsonl").read_text())
    words = f"--objective grpo {SIZES} {rows} --data.eval none {LETTERS} {SHORT}"
    assert train(words)[0] == 1
    code, said = train(f"{words} --data.on-bad-row skip --overwrite")
    assert code == 0, said
    assert {each["row_id"] for each in answers()} == {f"rows.jsonl:{number}" for number in (2, 3, 4, 5)}


def test_few_prompts_are_no_reason_to_warn_of_the_rows_of_a_step(train: Train) -> None:
    rows = f"{write('rows.jsonl', prompts(1, 2, 3, 4))} --data.eval none"
    code, said = train(f"--objective grpo {SIZES} {rows} {LETTERS} {SHORT}")
    assert code == 0, said
    assert "do not fill one optimizer step" not in said


# --------------------------------------------------------------------------------------------------------------- lengths


@pytest.mark.parametrize("objective", ["grpo", "ppo --data.batching packing"])
def test_a_held_out_prompt_and_its_answer_have_to_fit_into_a_row(train: Train, objective: str) -> None:
    write("held.jsonl", prompts(5, 63))
    rows = f"{write('rows.jsonl', prompts(1, 2, 3, 4))} --data.eval held.jsonl"
    words = f"--objective {objective} {SIZES} {rows} {LETTERS} {SHORT} --eval.every-steps 1"
    code, said = train(f"{words} --model.max-seq-len 67 --train.sequence-len 67")
    assert code == 2
    what = "the longest held-out prompt with the longest answer to it"
    assert f"train.sequence-len: 67 tokens, and {what} has 68. Set 68 or more" in said
    code, said = train(f"{words} --model.max-seq-len 68 --train.sequence-len 68")
    assert code == 0, said


@pytest.mark.parametrize("batching", ["packing", "padding"])
def test_recorded_answers_have_to_fit_into_a_row(train: Train, batching: str) -> None:
    rows = f"{write('rows.jsonl', prompts(1, 2, 3, 4))} --data.eval none"
    words = f"--objective grpo {SIZES} {rows} {LETTERS} --data.batching {batching}"
    code, said = train(f"{words} {ASKED} --objective.max-new-tokens 30 --train.sequence-len 64")
    assert code == 0, said
    longest = max(len(each["prompt"]) + len(each["ids"]) for each in answers())
    assert longest > 20
    code, said = train(f"{words} {SHORT} --objective.replay run --train.sequence-len {longest - 1} --output again")
    assert code == 2
    assert f"the answers of run/rollouts.jsonl are too long: a sample of rows.jsonl:4 has {longest} tokens" in said
    assert f"set --train.sequence-len {longest} or more" in said
    code, said = train(f"{words} {SHORT} --objective.replay run --train.sequence-len {longest} --output fits")
    assert code == 0, said


# ------------------------------------------------------------------------------------------------------------------ ends


def write_tokenizer(folder: str) -> str:
    """Write a tokenizer of bytes whose end token is another one than that of a turn, and return the words that name it."""
    vocab = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    Path(folder).mkdir()
    tokenizer.save(f"{folder}/tokenizer.json")
    about = {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(about))
    return f"--tokenizer huggingface --tokenizer.path {folder} --model.vocab-size {256 + len(SPECIAL)}"


@pytest.mark.parametrize("more", ["grpo", "grpo --sampler copy", "ppo", "rejection", "online-dpo"])
def test_answers_end_with_the_token_that_ends_a_turn(train: Train, more: str) -> None:
    """A model that has learned nothing writes it now and then; it is learned as the end token is."""
    tokenizer = write_tokenizer("tok")
    turns = [{"messages": [{"role": "user", "content": f"{n} hi"}]} for n in range(4)]
    rows = f"{write('rows.jsonl', turns)} --data.template chatml --data.eval none"
    long = "--objective.prompts 4 --objective.group 32 --objective.max-new-tokens 32 --train.steps 1"
    code, said = train(f"--objective {more} {SIZES} {tokenizer} {rows} {LETTERS} {long}")
    assert code == 0, said
    eos, end = 256 + SPECIAL.index("</s>"), 256 + SPECIAL.index(END)
    written = answers()
    assert sum(each["ids"][-1] == end and each["finish"] == "eos" for each in written) > 1
    assert any(each["ids"][-1] == eos for each in written)
    assert not any({eos, end} & set(each["ids"][:-1]) for each in written)


def test_answers_end_with_the_text_that_ends_a_turn_where_no_token_does(train: Train) -> None:
    """A model of bytes that has learned to write it; its bytes belong to the answer, and not to its text."""
    turns = [
        {"messages": [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": "ok"}]} for n in range(4)
    ]
    rows = f"{write('rows.jsonl', turns)} --data.template chatml --data.eval none"
    learn = "--optimizer.lr 1e-2 --train.steps 150 --train.micro-batch-size 4"
    code, said = train(f"--objective sft {SIZES} {rows} {learn} --output base")
    assert code == 0, said
    assert mt_convert(["base", "model"]) == 0
    drawn = "--objective.max-new-tokens 40 --objective.temperature 0.2"
    code, said = train(f"--model.weights model --objective grpo {rows} {LETTERS} {ASKED} {drawn}")
    assert code == 0, said
    stopped = [each for each in answers() if each["finish"] == "stop"]
    assert len(stopped) > 4
    assert all(bytes(each["ids"]).decode() == each["text"] + END for each in stopped)
