"""Whole objectives beside TRL's trainers: the same pairs through the same Llama give the same loss and the same gradient of every weight.

What is compared here is everything between token ids and gradients: which tokens count, the sums over answers, the reference as it is
measured, denominators. The losses themselves are compared in float64 in ``test_trl.py``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

from mt_core import Sample
from mt_core.nn import Batch, LossSums, TrainModel
from mt_core.plugins.host import PluginHost
from mt_plugin_alignment.objectives.aot import AotObjective
from mt_plugin_alignment.objectives.config import AotConfig, KtoConfig, RewardConfig
from mt_plugin_alignment.objectives.kto import KtoObjective
from mt_plugin_alignment.objectives.preference import PreferenceObjective
from mt_plugin_alignment.objectives.reward import PairwiseReward
from mt_train import load_weights
from mt_train.engine.coupling import couple
from mt_train.engine.step import Reader

sys.path.insert(0, str(Path(__file__).parent))

from trl_losses import orpo_step

BETA, VOCABULARY, PAD, EOS = 0.3, 96, 90, 91
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
}
TOLERANCE = 1e-5
"""Relative, of the loss and of the length of all gradients together: both sides compute in fp32."""


class _Pad:
    pad_id = PAD

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def random_pairs() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(0, 90, (count,), generator=generator).tolist()

    return [
        {"prompt_ids": ids(3 + n), "chosen_ids": [*ids(4 + n), EOS], "rejected_ids": [*ids(7 - n), EOS]}
        for n in range(4)
    ]


PAIRS = random_pairs()


def sample(pair: Mapping[str, list[int]], *, places: bool = False) -> Sample:
    """A pair as the objective encodes it, from ids."""
    sides = [[*pair["prompt_ids"], *pair[name]] for name in ("chosen_ids", "rejected_ids")]
    prompt = len(pair["prompt_ids"])
    trained = [[False] * prompt + [True] * (len(side) - prompt) for side in sides]
    values = [[0.0] * prompt + [float(n) for n in range(len(side) - prompt)] for side in sides]
    return Sample(
        [*sides[0], *sides[1]],
        [*trained[0], *trained[1]],
        "pair",
        None,
        [len(each) for each in sides],
        {},
        {"place": [*values[0], *values[1]]} if places else {},
    )


def save(folder: Path, seed: int, kind: type[Any] = LlamaForCausalLM, **more: Any) -> Any:
    """A Llama with weights that are far from each other, saved."""
    torch.manual_seed(seed)
    model = kind(LlamaConfig(**SHAPE, **more)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {chr(33 + number): number for number in range(90)} | {"<pad>": PAD, "<eos>": EOS}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The policy and the reference, theirs and ours, of the same files."""
    folder = tmp_path_factory.mktemp("models")
    theirs = {name: save(folder / name, seed) for name, seed in (("policy", 1), ("reference", 2))}
    ours = {f"our {name}": load_weights("llama", folder / name).model for name in theirs}
    return {**theirs, **ours, "folder": folder}


def make_trainer(models: dict[str, Any], **options: Any) -> Any:
    """TRL's trainer over the two models; what it is given to train on is not looked at."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    logging.getLogger("transformers").setLevel(logging.ERROR)
    rows = Dataset.from_list([{"prompt": "abc", "chosen": "defg", "rejected": "hij"}] * 4)
    plain = {"bf16": False, "gradient_checkpointing": False, "report_to": "none", "use_cpu": True, "max_length": None}
    folder = str(models["folder"] / "trl")
    arguments = trl.DPOConfig(folder, beta=BETA, label_smoothing=0.1, per_device_train_batch_size=4, **plain, **options)
    return trl.DPOTrainer(
        model=models["policy"],
        ref_model=models["reference"],
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer(),
    )


@pytest.fixture(scope="module")
def trainer(models: dict[str, Any]) -> Any:
    return make_trainer(models)


def gradient(loss: Tensor, model: torch.nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def same(ours: Tensor, theirs: Tensor, model: TrainModel, their_model: torch.nn.Module) -> None:
    assert float(ours) == pytest.approx(float(theirs), rel=TOLERANCE)
    one, other = gradient(ours, model), gradient(theirs, their_model)
    assert one.keys() == other.keys()
    apart = torch.stack([(one[name] - other[name]).norm() for name in one]).norm()
    assert apart <= TOLERANCE * torch.stack([each.norm() for each in other.values()]).norm()


def objective(name: str = "dpo", **options: Any) -> PreferenceObjective:
    """An objective as the plugin builds it, of its component and its parts."""
    host = PluginHost.discover()
    component = host.get("objective", name).component
    config = component.config(**options)
    assert component.parts is not None
    losses = []
    for choice in component.parts(config).values():
        part = host.get(choice.kind, choice.name).component
        losses.append(part.build(part.config(**choice.options)))
    built: PreferenceObjective = component.build(config, tokenizer=_Pad(), template=None, parts=losses)
    return built


def our_sums(
    made: PreferenceObjective | KtoObjective,
    models: dict[str, Any],
    *,
    packed: bool,
    samples: Sequence[Sample] | None = None,
) -> tuple[LossSums, Batch]:
    """A step of all pairs, after the reference was measured as a run does it; in one row, or a row each."""
    if samples is None:
        samples = [sample(each, places=getattr(made, "_has_tails", False)) for each in PAIRS]
    rows = [list(samples)] if packed else [[each] for each in samples]
    length = max(sum(len(each.ids) for each in row) for row in rows) + 3
    batch = made.collate(rows, length=length).with_index()
    reference, policy = models["our reference"], models["our policy"]
    with torch.no_grad():
        values = made.measure(reference(batch), reference.head, batch)
    batch = replace(batch, documents={**batch.documents, **values})

    def read(batches: Sequence[Batch], reader: Reader) -> None:
        with torch.no_grad():
            for each in batches:
                reader(policy(each), policy.head, each)

    (batch,) = couple(made, [batch], read)
    return made.loss(policy(batch), policy.head, batch), batch


def our_loss(
    made: PreferenceObjective | KtoObjective,
    models: dict[str, Any],
    *,
    packed: bool,
    samples: Sequence[Sample] | None = None,
) -> Tensor:
    """The loss of that step."""
    sums, batch = our_sums(made, models, packed=packed, samples=samples)
    total = sums.loss_sum / made.count(batch)
    for name, (value, _) in sums.terms.items():
        total = total + value / made.count_terms(batch)[name]
    return total


LOSSES: dict[str, dict[str, Any]] = {
    "sigmoid": {"loss": {"name": "sigmoid", "label_smoothing": 0.0}},
    "hinge": {"loss": "hinge"},
    "ipo": {"loss": "ipo"},
    "robust": {"loss": {"name": "robust", "label_smoothing": 0.1}},
    "exo_pair": {"loss": {"name": "exo-pair", "label_smoothing": 0.1}},
    "nca_pair": {"loss": "nca-pair"},
    "bco_pair": {"loss": "bco-pair"},
    "sppo_hard": {"loss": "sppo-hard"},
    "apo_zero": {"loss": "apo-zero"},
    "apo_down": {"loss": "apo-down"},
    "discopop": {"loss": "discopop"},
    "sigmoid_norm": {"loss": {"name": "sigmoid-norm", "beta": BETA}},
}
"""TRL's word → options of ours."""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_step_of_dpo_is_trls(name: str, packed: bool, trainer: Any, models: dict[str, Any]) -> None:
    trainer.loss_types, trainer.loss_weights = [name], [1.0]
    theirs = trainer.compute_loss(models["policy"], trainer.data_collator(PAIRS))
    ours = our_loss(objective(beta=BETA, **LOSSES[name]), models, packed=packed)
    same(ours, theirs, models["our policy"], models["policy"])


def test_likelihood_beside_the_loss_and_several_losses_are_trls(trainer: Any, models: dict[str, Any]) -> None:
    """RPO and MPO; the mean over tokens is one over all tokens of the step on both sides, which here are one micro-batch."""
    trainer.loss_types, trainer.loss_weights = ["sigmoid", "bco_pair", "sft"], [0.8, 0.2, 0.5]
    theirs = trainer.compute_loss(models["policy"], trainer.data_collator(PAIRS))
    several = [{"name": "sigmoid", "weight": 0.8}, {"name": "bco-pair", "weight": 0.2}]
    ours = our_loss(objective(beta=BETA, loss=several, sft=0.5, sft_mean="tokens"), models, packed=True)
    same(ours, theirs, models["our policy"], models["policy"])


def test_answers_that_are_weakened_behind_the_shorter_one_are_trls(trainer: Any, models: dict[str, Any]) -> None:
    trainer.loss_types, trainer.loss_weights, trainer.ld_alpha = ["sigmoid"], [1.0], 0.4
    try:
        theirs = trainer.compute_loss(models["policy"], trainer.data_collator(PAIRS))
    finally:
        trainer.ld_alpha = None
    ours = our_loss(objective(beta=BETA, ld_alpha=0.4), models, packed=True)
    same(ours, theirs, models["our policy"], models["policy"])


def test_pairs_that_are_weighed_by_how_likely_they_are_are_trls(models: dict[str, Any]) -> None:
    weighing = make_trainer(models, use_weighting=True)  # it is looked at when the trainer is made
    theirs = weighing.compute_loss(models["policy"], weighing.data_collator(PAIRS))
    ours = our_loss(objective(beta=BETA, wpo=True), models, packed=True)
    same(ours, theirs, models["our policy"], models["policy"])


@pytest.mark.parametrize("packed", [False, True])
def test_a_step_of_orpo_with_likelihood_of_all_tokens_is_trls(packed: bool, models: dict[str, Any]) -> None:
    pytest.importorskip("trl")
    theirs = orpo_step(models["policy"], PAIRS, beta=BETA, pad=PAD)
    made = objective("orpo", beta=BETA, nll_on="all", sft_mean="tokens")
    same(our_loss(made, models, packed=packed), theirs, models["our policy"], models["policy"])


@pytest.mark.parametrize("packed", [False, True])
def test_labels_of_prompts_change_nothing_but_the_likelihood(packed: bool, models: dict[str, Any]) -> None:
    """The reference, tails, weights and figures stay those of answers; the likelihood is that of the whole chosen side."""
    options = {"beta": BETA, "ld_alpha": 0.4, "wpo": True, "sft": 0.5}
    of_answers, _ = our_sums(objective(**options), models, packed=packed)
    of_all, batch = our_sums(objective(**options, nll_on="all"), models, packed=packed)
    assert float(of_all.loss_sum) == pytest.approx(float(of_answers.loss_sum), rel=1e-6)
    for name, (total, count) in of_answers.metrics.items():
        found, number = of_all.metrics[name]
        assert (float(found), float(number)) == pytest.approx((float(total), float(count)), rel=1e-6), name
    policy, expected = models["our policy"], 0.0
    logps_BTV = policy.head(policy(batch)).float().log_softmax(-1)
    of_chosen_BT = (batch.document_ids % 2 == 0) & (batch.positions + 1 < batch.lengths)
    for row, pair in enumerate(PAIRS):
        ids = [*pair["prompt_ids"], *pair["chosen_ids"]]
        own = of_chosen_BT[0] & (batch.document_ids[0] == 2 * row) if packed else of_chosen_BT[row]
        logps_TV = logps_BTV[0 if packed else row][own]
        expected -= 0.5 * float(logps_TV.gather(1, torch.tensor(ids[1:])[:, None]).mean())
    assert float(of_all.terms["sft"][0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "rows"), [("aot", "paired"), ("aot_unpaired", "unpaired")])
def test_a_step_of_aot_is_trls(name: str, rows: str, packed: bool, trainer: Any, models: dict[str, Any]) -> None:
    trainer.loss_types, trainer.loss_weights = [name], [1.0]
    theirs = trainer.compute_loss(models["policy"], trainer.data_collator(PAIRS))
    own = AotObjective(_Pad(), None, AotConfig(beta=BETA, rows=rows, label_smoothing=trainer.label_smoothing))  # type: ignore[arg-type]
    same(our_loss(own, models, packed=packed), theirs, models["our policy"], models["policy"])


ANSWERS = [
    {"prompt_ids": pair["prompt_ids"], "completion_ids": pair[side], "label": side == "chosen_ids"}
    for pair, side in zip(PAIRS, ("chosen_ids", "rejected_ids", "chosen_ids", "chosen_ids"), strict=True)
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "loss"), [("kto", "kto"), ("apo_zero_unpaired", "apo-zero")])
def test_a_step_of_kto_is_trls(name: str, loss: str, packed: bool, models: dict[str, Any]) -> None:
    """The baseline of their one micro-batch is that of our step, of the same answers of other rows; it is above 0."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    plain = {"bf16": False, "gradient_checkpointing": False, "report_to": "none", "use_cpu": True, "max_length": None}
    weights = {"beta": BETA, "desirable_weight": 1.2, "undesirable_weight": 0.7}
    arguments = trl.KTOConfig(output_dir=str(models["folder"] / "kto"), loss_type=name, **weights, **plain)
    unused = Dataset.from_list([{"prompt": "abc", "completion": "defg", "label": n % 2 == 0} for n in range(8)])
    made = trl.KTOTrainer(
        model=models["policy"],
        ref_model=models["reference"],
        args=arguments,
        train_dataset=unused,
        processing_class=tokenizer(),
    )
    others = [ANSWERS[-1], *ANSWERS[:-1]]
    rows = [{**row, "KL_completion_ids": other["completion_ids"]} for row, other in zip(ANSWERS, others, strict=True)]
    theirs = made.compute_loss(models["policy"], made.data_collator(rows))
    own = KtoObjective(_Pad(), None, KtoConfig(loss=loss, **weights))  # type: ignore[arg-type]
    samples = [labelled_sample(row) for row in rows]
    same(our_loss(own, models, packed=packed, samples=samples), theirs, models["our policy"], models["policy"])
    if loss == "kto":
        assert made._metrics["train"]["kl"][0] > 0.01


def labelled_sample(row: Mapping[str, Any]) -> Sample:
    """An answer, and the prompt with that of another row, as the objective encodes them, from ids."""
    documents = [[*row["prompt_ids"], *row[name]] for name in ("completion_ids", "KL_completion_ids")]
    prompt = len(row["prompt_ids"])
    trained = [place >= prompt for each in documents for place in range(len(each))]
    values = {"label": [1.0 if row["label"] else -1.0, 0.0], "mismatch": [0.0, 1.0]}
    return Sample([*documents[0], *documents[1]], trained, "row", None, [len(each) for each in documents], values)


@pytest.mark.parametrize("packed", [False, True])
def test_a_step_of_a_reward_model_is_trls(packed: bool, models: dict[str, Any]) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    folder = models["folder"]
    theirs = save(folder / "reward", 5, LlamaForSequenceClassification, num_labels=1)
    plain = {"bf16": False, "gradient_checkpointing": False, "report_to": "none", "use_cpu": True, "max_length": None}
    arguments = trl.RewardConfig(output_dir=str(folder / "trl"), center_rewards_coefficient=0.01, **plain)
    rows = Dataset.from_list([{"chosen": "abcd", "rejected": "efg"}] * 4)
    made = trl.RewardTrainer(model=theirs, args=arguments, train_dataset=rows, processing_class=tokenizer())
    sides = [{name: [*each["prompt_ids"], *each[name]] for name in ("chosen_ids", "rejected_ids")} for each in PAIRS]
    their_loss = made.compute_loss(theirs, made.data_collator(sides))
    own = PairwiseReward(_Pad(), None, RewardConfig(centring=0.01))  # type: ignore[arg-type]
    model = load_weights("llama", folder / "reward", objective="reward").model
    samples = [sample(each) for each in PAIRS]
    grouped = [samples] if packed else [[each] for each in samples]
    batch = own.collate(grouped, length=max(sum(len(each.ids) for each in row) for row in grouped)).with_index()
    sums = own.loss(model(batch), model.head, batch)
    loss = sums.loss_sum / own.count(batch)
    assert float(loss) == pytest.approx(float(their_loss), rel=TOLERANCE)
    one, other = gradient(loss, model), gradient(their_loss, theirs)
    one = {name.replace("lm_head.objective.", ""): each for name, each in one.items()}
    assert one.keys() == other.keys()
    apart = torch.stack([(one[name] - other[name]).norm() for name in one]).norm()
    assert apart <= TOLERANCE * torch.stack([each.norm() for each in other.values()]).norm()
