"""Rewards that are models: a trained reward model, and an adapter over the weights that a run is trained on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from one_rank import OneRank

from mt_conformance import BaseRewardConformance
from mt_core import DataError, Encoded, UsageError
from mt_plugin_alignment import Answer, plugin
from mt_plugin_alignment.reward_functions.models import (
    AdapterReward,
    AdapterRewardConfig,
    ModelReward,
    ModelRewardConfig,
)
from mt_plugin_alignment.scores import score_answers
from mt_plugin_alignment.scoring import Scorer
from mt_tools.cli.convert import main as mt_convert
from mt_train import load_run, train
from mt_train.cli.train import main as mt_train

MODEL = {"name": "llama", "n_layers": 2, "dim": 32, "n_heads": 2, "n_kv_heads": 1}
TEXTS = ("it is 1", "zqzq", "it", "it is 2, and 3", "", "zq")


def reward_run(folder: Path, name: str, **more: Any) -> Path:
    """A reward model that likes digits."""
    lines = [{"prompt": f"say {n} -> ", "chosen": f"it is {n}", "rejected": "zq" * (1 + n % 5)} for n in range(32)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    raw = {
        "model": MODEL,
        "objective": "reward",
        "dataset": {"name": "jsonl", "path": str(folder / "pairs.jsonl")},
        "data": {"eval": None, "cache": "none"},
        "train": {"steps": 20, "sequence_len": 192, "micro_batch_size": 4},
        "optimizer": {"name": "adamw", "lr": 1e-2},
        "eval": {"samples": 0},
        **more,
    }
    train(raw, output=folder / name)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward-models")
    reward_run(folder, "run")
    return folder


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Scorer:
    return Scorer(load_run(folder / "run"))


def turns(text: str, *, raw: bool = True) -> list[dict[str, Any]]:
    said = {"raw": True} if raw else {}
    return [{"role": "user", "content": "say 1 -> ", **said}, {"role": "assistant", "content": text, **said}]


def answers(folder: Path, texts: tuple[str, ...] = TEXTS, finish: str = "eos") -> list[Answer]:
    """Answers as a policy with the tokenizer and the template of the run writes them."""
    loaded = load_run(folder / "run")
    assert loaded.template is not None
    found = []
    for text in texts:
        prompt, *_ = turns(text)
        prompt_ids = loaded.template.prompt([prompt])
        end = loaded.tokenizer.eos_id
        ids = [*loaded.tokenizer.encode(text), *([end] if finish == "eos" and end is not None else [])]
        found.append(Answer(text, ids, finish, {"id": "row 1", "prompt": "say 1 -> "}, 0, [prompt], prompt_ids))
    return found


def test_a_reward_model_scores_as_mt_score_does(folder: Path, scorer: Scorer) -> None:
    reward = ModelReward(ModelRewardConfig(path=folder / "run", batch_size=2))
    given = answers(folder)
    expected = scorer.score([turns(text) for text in TEXTS])
    assert reward.score(given) == pytest.approx(expected, abs=1e-5)
    found = score_answers({"judge": reward}, given, OneRank())["judge"]  # type: ignore[arg-type]
    assert found == reward.score(given)
    assert max(range(len(TEXTS)), key=found.__getitem__) in (0, 3)


def test_an_answer_of_the_same_tokenizer_is_read_as_the_tokens_that_were_drawn(folder: Path, scorer: Scorer) -> None:
    (one,) = answers(folder, ("it is 1",))
    assert scorer.answer_ids(one) == [*one.prompt_ids, *one.ids]
    loaded = load_run(folder / "run")
    reads = SimpleNamespace(decode=lambda ids: "it is 1", pad_id=None)  # a tokenizer that writes a text in several ways
    drawn = Answer(**{**vars(one), "ids": [7, 8, one.ids[-1]]})
    several = Scorer(replace(loaded, tokenizer=reads))  # type: ignore[arg-type]
    assert several.answer_ids(drawn) == [*one.prompt_ids, 7, 8, one.ids[-1]]
    whole = Encoded([*one.prompt_ids, 5, 5, one.ids[-1], 9], [False] * len(one.prompt_ids) + [True] * 3 + [False])
    closes = SimpleNamespace(encode=lambda turns: whole)  # a template that goes on after the end of an answer
    closing = Scorer(replace(loaded, tokenizer=reads, template=closes))  # type: ignore[arg-type]
    assert closing.answer_ids(drawn) == [*one.prompt_ids, 7, 8, one.ids[-1], 9]
    (cut,) = answers(folder, ("it is 1",), finish="length")
    assert scorer.answer_ids(cut) == [*one.prompt_ids, *one.ids], "a cut one is read as a whole conversation"


@pytest.mark.parametrize("change", ["prompt_ids", "ids"])
def test_an_answer_of_another_tokenizer_or_template_is_read_as_its_conversation(
    folder: Path, scorer: Scorer, change: str
) -> None:
    (one,) = answers(folder, ("it is 1",))
    wanted = scorer.answer_ids(one)
    other = Answer(**{**vars(one), change: [5, *list(getattr(one, change))[1:]]})
    assert scorer.answer_ids(other) == wanted


def test_a_chat_template_is_not_put_around_twice(folder: Path, tmp_path: Path) -> None:
    run = reward_run(tmp_path, "chat", data={"eval": None, "cache": "none", "template": "chatml"})
    loaded = load_run(run)
    assert loaded.template is not None
    conversation = turns("it is 1", raw=False)
    whole = loaded.template.encode(conversation).ids
    prompt_ids = loaded.template.prompt(conversation[:1])
    trained = [place for place, is_trained in enumerate(loaded.template.encode(conversation).trained) if is_trained]
    drawn = whole[len(prompt_ids) : trained[-1] + 1]
    one = Answer("it is 1", drawn, "eos", {"id": "row"}, 0, conversation[:1], prompt_ids)
    assert Scorer(loaded).answer_ids(one) == whole
    expected = Scorer(loaded).score([conversation])
    assert ModelReward(ModelRewardConfig(path=run)).score([one]) == pytest.approx(expected, abs=1e-6)


def test_answers_that_the_model_cannot_read_have_no_score(folder: Path) -> None:
    reward = ModelReward(ModelRewardConfig(path=folder / "run"))
    longest = load_run(folder / "run").max_seq_len
    short, long = answers(folder, ("it", "it " * longest))
    found = reward.score([long, short, long])
    assert found[0] is None
    assert found[2] is None
    assert found[1] is not None


def test_a_prompt_that_its_template_cannot_write_ends_the_run(folder: Path) -> None:
    reward = ModelReward(ModelRewardConfig(path=folder / "run"))
    (one,) = answers(folder, ("it",))
    chat = Answer(**{**vars(one), "prompt": turns("it", raw=False)[:1]})
    with pytest.raises(DataError, match="has no chat template"):
        reward.score([chat])


def test_the_model_is_loaded_once_frozen_and_when_it_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = ModelReward(ModelRewardConfig(path=folder / "run"))
    loads: list[Any] = []
    monkeypatch.setattr("mt_train.load_run", lambda path: loads.append(load_run(path)) or loads[-1])
    assert not loads
    reward.score(answers(folder))
    reward.score(answers(folder))
    assert len(loads) == 1
    assert not loads[0].model.training
    assert not any(each.requires_grad for each in loads[0].model.parameters())


def test_weights_that_were_written_for_others_give_the_same_scores(folder: Path, tmp_path: Path) -> None:
    assert mt_convert([str(folder / "run"), str(tmp_path / "weights")]) == 0
    reward = ModelReward(ModelRewardConfig(path=tmp_path / "weights"))
    given = answers(folder)
    expected = ModelReward(ModelRewardConfig(path=folder / "run")).score(given)
    assert reward.score(given) == pytest.approx(expected, abs=1e-5)


def test_paths_that_are_no_reward_model_are_refused(folder: Path, tmp_path: Path) -> None:
    for options, says in (
        ({"path": tmp_path / "none"}, "is no folder"),
        ({"path": tmp_path}, "has no model; give the folder of a run"),
        ({"path": folder / "run", "family": "llama"}, "brings its own model"),
    ):
        with pytest.raises(UsageError, match=says):
            ModelReward(ModelRewardConfig(**options))  # type: ignore[arg-type]
    plain = {"model": MODEL, "train": {"steps": 1}, "eval": {"samples": 0}}
    train(plain, output=tmp_path / "plain")
    with pytest.raises(UsageError, match="the model has no head for scores"):
        ModelReward(ModelRewardConfig(path=tmp_path / "plain")).score(answers(folder))


class TestModel(BaseRewardConformance):
    plugin, name, tolerance = plugin, "model", 1e-5

    @pytest.fixture(autouse=True)
    def _trained(self, folder: Path) -> None:
        self.options = {"path": str(folder / "run")}


# ------------------------------------------------------------------------------------------------------------- adapters


def test_an_adapter_needs_the_model_of_a_run(folder: Path) -> None:
    reward = AdapterReward(AdapterRewardConfig(path=folder / "run"))
    with pytest.raises(UsageError, match="outside one, take --rewards model"):
        reward.score(answers(folder))
    with pytest.raises(UsageError, match=r"reward adapter: .* With --rewards model it is scored by weights of its own"):
        score_answers({"judge": reward}, answers(folder), OneRank())  # type: ignore[arg-type]


ONE = "--rewards adapter,model --rewards.adapter.weight 0.5 --rewards.model.path lora --rewards.adapter.path lora"
GRPO = "--objective.prompts 2 --objective.group 4 --objective.max-new-tokens 8 --train.steps 2 --objective.updates 1"


@pytest.fixture
def grpo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``mt-train --objective grpo`` beside a reward model and a reward adapter."""
    monkeypatch.chdir(folder)
    if not Path("lora").exists():
        reward_run(folder, "lora", adapter={"name": "lora", "rank": 4})
        prompts = "".join(json.dumps({"prompt": f"say {n} -> "}) + "\n" for n in range(6))
        Path("prompts.jsonl").write_text(prompts)
    sizes = " ".join(f"--model.{name.replace('_', '-')} {value}" for name, value in MODEL.items() if name != "name")
    given = (
        "--model llama --objective grpo --dataset jsonl --dataset.path prompts.jsonl --data.eval none --data.cache none"
    )
    return lambda words: mt_train(f"{given} {sizes} {GRPO} {words}".split())


def written(run: str) -> list[dict[str, Any]]:
    lines = [
        json.loads(line) for line in Path(run, "rollouts.jsonl").read_text("utf-8", "surrogateescape").splitlines()
    ]
    assert len(lines) == 16
    return lines


def test_an_adapter_scores_as_the_model_that_it_was_trained_in(grpo: Callable[..., int], folder: Path) -> None:
    assert grpo(f"{ONE} --adapter lora --optimizer.lr 0.05 --output live") == 0
    lines = written("live")
    assert len({each["rewards"]["model"] for each in lines}) > 8
    for each in lines:
        assert each["rewards"]["adapter"] == each["rewards"]["model"]
    last = json.loads(Path("live/metrics.jsonl").read_text().splitlines()[-1])
    assert last["reward"] == pytest.approx(0.5 * last["reward_adapter"] + last["reward_model"], rel=1e-6)


def test_an_adapter_over_weights_that_are_trained_is_refused(
    grpo: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert grpo("--rewards adapter --rewards.adapter.path lora --output refused") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "reward adapter: this run trains model.embed_tokens.weight" in said
    assert "With --rewards model it is scored by weights of its own" in said


@pytest.mark.long
def test_two_ranks_give_the_scores_of_one_and_ask_once(grpo: Callable[..., int], folder: Path) -> None:
    Path("count.py").write_text(
        "def score(answers):\n    with open('asked', 'a') as file:\n        print(len(answers), file=file)\n"
        "    return [0.0 for _ in answers]\n"
    )
    words = f"{ONE.replace('adapter,model', 'adapter,model,python')} --rewards.python.path count.py --adapter lora"
    assert grpo(f"{words} --output alone") == 0
    assert Path("asked").read_text().split() == ["8", "8"]
    assert grpo(f"{words} --nproc-per-node 2 --parallel.zero-stage 2 --output both") == 0
    assert Path("asked").read_text().split() == ["8"] * 4
    assert written("both") == written("alone")
