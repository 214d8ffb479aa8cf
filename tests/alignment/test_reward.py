"""Reward models: where a score is read, what is trained and saved, and what transformers makes of an exported one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mt_core import Sample
from mt_core.errors import DataError, WeightsError
from mt_core.nn import Batch
from mt_plugin_alignment.objectives.config import RewardConfig
from mt_plugin_alignment.objectives.reward import PairwiseReward
from mt_plugin_alignment.scoring import Scorer
from mt_tools.cli.convert import main as convert
from mt_tools.cli.export import main as export
from mt_train import load_run, load_weights, train

SHAPE = {"n_layers": 2, "dim": 32, "n_heads": 2, "n_kv_heads": 1, "ffn_dim": 48}
CONVERSATIONS = [
    [{"role": "user", "content": prompt, "raw": True}, {"role": "assistant", "content": answer, "raw": True}]
    for prompt, answer in (("2 + 2 = ", "4"), ("Say yes: ", "yes, and once more yes"), ("a", "b"))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    pairs = [
        {"prompt": f"say {n} -> ", "chosen": f"it is {n}", "rejected": "zq" * (1 + n % 5), "margin": n % 3}
        for n in range(48)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pairs))
    return folder


def config(folder: Path, **sections: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "model": {"name": "llama", **SHAPE},
        "objective": "reward",
        "dataset": {"name": "jsonl", "path": str(folder / "pairs.jsonl")},
        "data": {"eval": 0.2, "cache": "none"},
        "train": {"steps": 6, "sequence_len": 96, "micro_batch_size": 4},
        "optimizer": {"name": "adamw", "lr": 5e-3},
        "eval": {"every_steps": 3},
        "checkpoint": {"every_steps": 3},
    }
    return {**raw, **sections}


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A reward model that was trained for six steps."""
    return train(config(folder), output=folder / "run").output or Path()


@pytest.fixture(scope="module")
def adapted(folder: Path) -> Path:
    """One that was trained as a LoRA."""
    raw = config(folder, adapter={"name": "lora", "rank": 4})
    return train(raw, output=folder / "adapted").output or Path()


def tensors(run: Path, step: int) -> dict[str, torch.Tensor]:
    from mt_train.checkpoint.tensors import open_model

    return {name: load() for name, load in open_model(run / f"checkpoints/step-{step:08}" / "model").items()}


def records(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    timed = ("tokens_per_second", "memory_gib", "data_wait_seconds", "seconds")
    return [{name: value for name, value in json.loads(line).items() if name not in timed} for line in lines]


def test_a_run_ends_with_the_command_that_measures_it_and_with_none_that_generates(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = config(folder, train={"steps": 1, "sequence_len": 96, "micro_batch_size": 4}, eval={"samples": 0})
    output = train(raw, output=folder / "one-step").output
    said = capsys.readouterr().out
    assert f"mt-eval --run {output}\n" in said
    assert "mt-generate" not in said


def test_pairs_are_told_apart(run: Path) -> None:
    first, *_, last = records(run)
    assert first["loss"] == pytest.approx(math.log(2), abs=0.05)
    assert last["eval_score_accuracy"] == 1
    assert last["eval_loss"] < first["loss"]


def test_a_resumed_run_is_the_one_that_was_not_stopped(folder: Path, run: Path) -> None:
    """Loss, figures and every weight, the head's among them, to the bit."""
    half = folder / "half"
    train(
        config(folder, train={"steps": 3, "sequence_len": 96, "micro_batch_size": 4}, schedule="constant"), output=half
    )
    train({"train": {"steps": 6}}, resume=half)
    whole = folder / "whole"
    train(config(folder, schedule="constant"), output=whole)
    assert records(half) == records(whole)
    one, other = tensors(half, 6), tensors(whole, 6)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert "lm_head.objective.score.weight" in one


def test_the_language_head_is_not_trained_and_the_score_is(run: Path) -> None:
    before, after = tensors(run, 3), tensors(run, 6)
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    assert not torch.equal(before["lm_head.objective.score.weight"], after["lm_head.objective.score.weight"])
    assert not torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])


def test_under_an_adapter_the_score_is_trained_and_saved_with_it(adapted: Path) -> None:
    before, after = tensors(adapted, 3), tensors(adapted, 6)
    assert not torch.equal(before["lm_head.objective.score.weight"], after["lm_head.objective.score.weight"])
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])


def test_a_tied_embedding_goes_on_being_trained(folder: Path) -> None:
    raw = config(folder, model={"name": "llama", **SHAPE, "tie_embeddings": True})
    run = train(raw, output=folder / "tied").output or Path()
    before, after = tensors(run, 3), tensors(run, 6)
    assert not torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])


def test_transformers_opens_an_exported_one_with_the_same_scores(folder: Path, run: Path) -> None:
    """Full and adapted, which is merged; and so do we."""
    from transformers import AutoModelForSequenceClassification

    loaded = load_run(run)
    ours = Scorer(loaded).score(CONVERSATIONS)
    assert loaded.template is not None
    ids = [loaded.template.encode(each).ids for each in CONVERSATIONS]
    assert convert([str(run), str(folder / "exported")]) == 0
    theirs = AutoModelForSequenceClassification.from_pretrained(folder / "exported").eval()
    longest, pad = max(map(len, ids)), theirs.config.pad_token_id
    padded = torch.tensor([[*each, *[pad] * (longest - len(each))] for each in ids])
    with torch.no_grad():
        found = theirs(padded, attention_mask=(padded != pad).long()).logits[:, 0].tolist()
    assert found == pytest.approx(ours, abs=1e-5)
    back = Scorer(load_weights(folder / "exported", objective="reward"))
    assert back.score(CONVERSATIONS) == pytest.approx(ours, abs=1e-6)


def test_transformers_scores_the_token_that_ends_a_text_where_padding_is_that_token(folder: Path) -> None:
    """Named as padding it would be passed over, and the score be that of the token before."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE({letter: at for at, letter in enumerate([*letters, "</s>"])}, []))
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>", pad_token="</s>").save_pretrained(folder / "own")
    raw = config(folder, tokenizer={"path": str(folder / "own")}, model={"name": "llama", **SHAPE, "vocab_size": 320})
    run = train(raw, output=folder / "one-token").output or Path()
    loaded = load_run(run)
    assert loaded.template is not None
    ids = loaded.template.encode(CONVERSATIONS[1]).ids
    assert convert([str(run), str(folder / "of-one-token")]) == 0
    theirs = AutoModelForSequenceClassification.from_pretrained(folder / "of-one-token").eval()
    assert ids[-1] == AutoTokenizer.from_pretrained(folder / "of-one-token").pad_token_id
    with torch.no_grad():
        found = theirs(torch.tensor([ids])).logits[:, 0].tolist()
    assert found == pytest.approx(Scorer(loaded).score(CONVERSATIONS[1:2]), abs=1e-5)


def test_weights_without_a_score_are_refused_where_scores_are_asked_for(folder: Path) -> None:
    """A head that was drawn would give answers scores that mean nothing."""
    raw = config(folder, objective="pretrain", dataset={"name": "demo"}, train={"steps": 1, "sequence_len": 32})
    run = train(raw, output=folder / "no-score").output or Path()
    assert convert([str(run), str(folder / "plain")]) == 0
    with pytest.raises(WeightsError, match=r"plain has no lm_head\.objective\.score\.weight.* --objective reward"):
        load_weights(folder / "plain", objective="reward")


def test_an_adapted_one_is_merged_with_its_score(folder: Path, adapted: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    loaded = load_run(adapted)
    ours = Scorer(loaded).score(CONVERSATIONS[:1])
    assert loaded.template is not None
    assert export(["--run", str(adapted), "--merge", "--output", str(folder / "merged")]) == 0
    theirs = AutoModelForSequenceClassification.from_pretrained(folder / "merged").eval()
    with torch.no_grad():
        found = theirs(torch.tensor([loaded.template.encode(CONVERSATIONS[0]).ids])).logits[:, 0].tolist()
    assert found == pytest.approx(ours, abs=1e-5)


@pytest.mark.parametrize("rows", ["pairs", "scored"])
def test_margins_and_scores_come_from_the_rows(folder: Path, rows: str) -> None:
    if rows == "scored":
        lines = [{"prompt": f"{n}", "response": "x" * (n % 4), "score": n % 4} for n in range(1, 40) if n % 4]
        (folder / "scored.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        raw = config(
            folder,
            objective={"name": "reward", "rows": "scored"},
            dataset={"name": "jsonl", "path": str(folder / "scored.jsonl")},
            train={"steps": 40, "sequence_len": 96, "micro_batch_size": 8},
        )
    else:
        raw = config(folder, objective={"name": "reward", "margin": "add", "centring": 0.01})
    run = train(raw, output=folder / f"rows-{rows}").output or Path()
    first, *_, last = records(run)
    assert last["eval_loss"] < first["loss"]
    if rows == "scored":
        assert last["eval_score_error"] < 1, "better than the mean score of all"


class Marker(nn.Module):
    """A head that carries a score head which gives back the first number of the hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.objective = _First()


class _First(nn.Module):
    def forward(self, hidden_nD: torch.Tensor) -> torch.Tensor:
        return hidden_nD[:, 0]


class _Bytes:
    pad_id = 0


@pytest.fixture
def objective() -> Callable[..., PairwiseReward]:
    def make(**options: Any) -> PairwiseReward:
        return PairwiseReward(_Bytes(), None, RewardConfig(**options))  # type: ignore[arg-type]

    return make


def item(chosen: int, rejected: int) -> Sample:
    """A pair of so many tokens on each side, the first of them the prompt."""
    count = chosen + rejected
    trained = [False] + [True] * (chosen - 1) + [False] + [True] * (rejected - 1)
    return Sample(list(range(1, count + 1)), trained, "row", None, [chosen, rejected])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_score_is_read_at_the_last_token_of_its_document(
    objective: Callable[..., PairwiseReward], packed: bool, ranks: int
) -> None:
    """However rows are put together, padded, and shared among ranks. A hidden state here is the token's id."""
    items = [item(3, 5), item(6, 2), item(2, 2)]
    rows = [items] if packed else [[each] for each in items] + [[]]
    whole = objective().collate(rows, length=24)
    scores = torch.zeros(sum(map(len, whole.with_index().document_lengths or ())))
    for rank in range(ranks):
        batch: Batch = whole.cut(rank, ranks).with_index()
        hidden = batch.input_ids.float()[..., None].expand(-1, -1, 4)
        scores += objective().document_scores(hidden, Marker(), batch)
    assert whole.items is not None
    assert scores[whole.items].tolist() == [3, 6, 2]
    assert scores[whole.items + 1].tolist() == [8, 8, 4]


def test_a_margin_that_is_no_number_is_refused_by_its_row(objective: Callable[..., PairwiseReward], run: Path) -> None:
    template = load_run(run).template
    assert template is not None
    made = PairwiseReward(_Bytes(), template, RewardConfig(margin="add"))  # type: ignore[arg-type]
    row = {"id": "row-7", "prompt": "a", "chosen": "b", "rejected": "c"}
    with pytest.raises(DataError, match=r"row-7: field 'margin' is None; .* --data\.columns '\{margin: NAME\}'"):
        made.encode(row)
    with pytest.raises(DataError, match="field 'margin' is 'much'"):
        made.encode({**row, "margin": "much"})
