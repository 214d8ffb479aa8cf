"""Exported folders opened by other readers: transformers and peft themselves, and stand-ins that apply the rules of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core.errors import OutputError, UsageError, WeightsError
from mt_tools.convert.check import READERS, TEXTS, Answer, Expected, Reader, check

Export = Callable[..., str]
STAND_INS = Path(__file__).parent / "stand_ins"
END, VOCABULARY = 9, 10


@pytest.fixture(scope="session")
def run(train: Callable[..., Path]) -> Path:
    """A LoRA with ranks that differ, which vLLM reads otherwise in peft's form."""
    words = ("--adapter.rank", "4", "--adapter.rslora", "true", "--adapter.ranks", "{mlp.up_proj: 2}")
    return train("--adapter", "lora", *words, lr="1e-1")


@pytest.mark.soak  # the page of exports runs the same
def test_transformers_continues_an_adapter_through_peft_as_we_do(run: Path, export: Export, tmp_path: Path) -> None:
    said = export("--run", run, "--output", tmp_path / "lora", "--check", "transformers")
    assert "with peft" in said
    assert "continues 8 of 8 texts alike (512 tokens); its ids of the texts are ours" in said


def test_vllm_continues_the_portable_form_as_we_do(
    run: Path, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    said = export("--run", run, "--output", tmp_path / "portable", "--check", "vllm")
    assert "vLLM 0.32.0 (stand-in) continues 8 of 8 texts alike (512 tokens)" in said


@pytest.mark.soak
def test_another_factor_of_vllm_is_found(
    run: Path, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    words = ("--run", run, "--output", tmp_path / "peft", "--form", "peft", "--check", "vllm")
    assert "is written, and vllm continues otherwise" in export(*words, fails=True)
    assert (tmp_path / "peft/adapter_config.json").exists(), "it stays, for whoever wants to look"


@pytest.mark.parametrize("name", READERS[1:])
def test_a_reader_that_is_not_installed_is_refused_with_how_to_install_it(name: str) -> None:
    with pytest.raises(UsageError, match="install"):
        Reader.find(name, None, adapter=False)
    with pytest.raises(UsageError, match=r"/nowhere"):
        Reader.find(name, "/nowhere", adapter=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--check", "llama.cpp"), "add --merge --gguf FILE"),
        (("--reader", "python"), "--reader belongs to --check"),
        (("--check", "vllm"), "install it in an environment of its own"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_anything_is_written(
    words: tuple[str, ...], says: str, run: Path, export: Export, tmp_path: Path
) -> None:
    assert says in export("--run", run, "--output", tmp_path / "out", *words, fails=True)
    assert not (tmp_path / "out").exists()


class Canned(Reader):
    """Answers with what a test says."""

    def __init__(self, **answer: Any) -> None:
        super().__init__("canned", "canned")
        self.__dict__["answer"] = answer

    def read(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"version": "canned 1", "texts": None, **self.__dict__["answer"]}


def expected(logits: torch.Tensor | None = None, *, ended: bool = False) -> Expected:
    """Each prompt is continued by 3, 4 (and an end); the next likely token after 3 is 5, by 0.01."""
    if logits is None:
        logits = torch.zeros(3, VOCABULARY)
        logits[0, 3], logits[1, 4], logits[1, 5] = 2.0, 2.0, 1.99
    ids = [[1, number] for number in range(len(TEXTS))]
    return Expected(ids, ids, [Answer([3, 4], ended)] * len(ids), [END], [logits] * len(ids))


def asked(*answers: tuple[list[int], bool], ended: bool = False, **more: Any) -> Any:
    """What the check makes of these answers, the last of which stands for all that follow."""
    listed = [{"ids": ids, "ended": ends} for ids, ends in answers]
    listed += listed[-1:] * (len(TEXTS) - len(listed))
    words = {"base": None, "rank": 1, "context": 64}
    return check(Canned(answers=listed, **more), expected(ended=ended), Path("out"), **words)


def test_tokens_that_are_as_likely_end_a_comparison_and_others_end_the_check() -> None:
    assert asked(([3, 4], False)).equal == len(TEXTS)
    near = asked(([3, 5], False), ([3, 4], False))
    assert near.equal == len(TEXTS) - 1
    assert "7 of 8 texts alike, 1 but for tokens that are as likely" in str(near)
    with pytest.raises(WeightsError, match=r"prompt 1 of 8 .*new token 2: 6 there, 4 here, which is 2 ahead"):
        asked(([3, 6], False))


def test_a_text_that_ends_elsewhere_is_found() -> None:
    assert asked(([3, 4, END], True), ended=True).equal == len(TEXTS)
    assert asked(([3, 4], True), ended=True).equal == len(TEXTS), "a reader that leaves the end out of its ids"
    with pytest.raises(WeightsError, match="ends elsewhere"):
        asked(([3], False))
    with pytest.raises(WeightsError, match="ends elsewhere"):
        asked(([3, 4], False), ended=True)


def test_other_ids_of_a_text_and_too_few_answers_are_found() -> None:
    ids = [[1, number] for number in range(len(TEXTS))]
    assert asked(([3, 4], False), texts=ids).ids_compared
    with pytest.raises(WeightsError, match=r"reads a text otherwise: .*\[2, 0\] there, and \[1, 0\] here"):
        asked(([3, 4], False), texts=[[2, 0], *ids[1:]])
    few = Canned(answers=[{"ids": [3, 4], "ended": False}])
    with pytest.raises(OutputError, match="answered 1 of 8"):
        check(few, expected(), Path("out"), base=None, rank=1, context=64)
