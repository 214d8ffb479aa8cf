"""Learning from rewards without a critic beside TRL: the same answers through the same Llama give the same loss and gradients."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from test_trl_objectives import EOS, PAD, TOLERANCE, VOCABULARY, _Pad, gradient, save, tokenizer

from mt_core.nn import Batch
from mt_plugin_alignment.objectives.grpo import GrpoObjective
from mt_plugin_alignment.objectives.grpo_config import GrpoConfig
from mt_plugin_alignment.reward_functions.texts import Length, LengthConfig
from mt_train import load_weights

PROMPTS = [[5, 9, 3, 8]] * 4
ANSWERS = [[7, 3, 8, 20, 4, 9, 61, EOS], [44, 2, 71, 5, EOS], [30, 31, EOS], [8, 8, 17, 50, 2, EOS]]
TOKENS, LONGEST = sum(map(len, ANSWERS)), max(map(len, ANSWERS))
GAINED = [1.2, -0.7, 0.9, -0.3]
SHIFTS = (0.3, -0.3, 0.03, 0.02)
"""The first two answers are beyond a bound."""
LOW, HIGH, BETA, CAP = 0.1, 0.15, 0.5, 1.3
"""With a ``BETA`` of 0.2 advantages and KL cancel to a loss of 0.005, of which fp32 keeps too few digits on some processors."""
Values = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Case:
    """Options of both sides, and how far (nats) the policy that drew is from the one that learns: at random, and in each answer."""

    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    apart: float = 1.0
    shifts: Sequence[float] = (0.0, 0.0, 0.0, 0.0)
    kl: bool = False


DAPO, GRPO = {"loss_type": "dapo"}, {"loss_type": "grpo"}
SEQUENCE = {"importance_sampling_level": "sequence"}
K3 = {"kl": BETA, "kl_estimator": "k3"}
CASES: dict[str, Case] = {
    "mean over tokens": Case({"mean": "token"}, DAPO),
    "mean over answers": Case({"mean": "answer"}, GRPO),
    "mean over places": Case({"mean": "constant"}, {"loss_type": "dr_grpo"}),
    "bounds of bad tokens": Case({"dual_clip": 2.0}, {**DAPO, "delta": 2.0}),
    "ratios of answers": Case({"mean": "answer", "loss": "sequence"}, {**GRPO, **SEQUENCE}, apart=0.05, shifts=SHIFTS),
    "weights that are clipped": Case(
        {"loss": "cispo", "clip_low": 1.0}, {"loss_type": "cispo", "epsilon_high": 1 + HIGH}
    ),
    "a soft gate": Case(
        {"loss": "soft", "mean": "answer", "soft_positive": 0.7}, {"loss_type": "sapo", "sapo_temperature_pos": 0.7}
    ),
    "a bonus for entropy": Case({"mean": "token", "entropy_weight": 0.3}, {**DAPO, "entropy_coef": 0.3}),
    "KL over tokens": Case({**K3}, DAPO, kl=True),
    "KL over answers": Case({**K3, "mean": "answer"}, GRPO, kl=True),
    "KL beside ratios of answers": Case(
        {**K3, "mean": "answer", "loss": "sequence"}, {**GRPO, **SEQUENCE}, apart=0.05, shifts=SHIFTS, kl=True
    ),
    "a sampler apart": Case({"importance": "token", "importance_high": CAP}, DAPO),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_that_of_trl(name: str, packed: bool, tmp_path: Path) -> None:
    """Value and gradient: tokens that another policy drew, some of them beyond a bound on either side."""
    case = CASES[name]
    bounds = {} if case.ours.get("loss") == "soft" else {"clip_low": LOW}
    ours = Ours(tmp_path, GrpoConfig(**{**bounds, **case.ours}), case)
    batch, loss, clipped = ours.step(packed=packed)
    trainer = ours.trainer("GRPOTrainer", "GRPOConfig", {"epsilon": LOW, "epsilon_high": HIGH, **case.theirs})
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
    trainer.args.use_bias_correction_kl = False
    given = ours.inputs() | {
        "num_items_in_batch": torch.tensor(float(TOKENS)),
        "old_per_token_logps": padded(ours.old, 0.0),
    }
    if case.kl:
        trainer.beta, given["ref_per_token_logps"] = BETA, padded(ours.reference, 0.0)
    if case.ours.get("importance"):
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        apart = padded(ours.old, 0.0) - padded(ours.sampled, 0.0)
        given["importance_sampling_ratio"] = apart.exp().clamp(max=CAP)
        assert (apart.exp() > CAP).any()
    assert_equal(loss, trainer._compute_loss(trainer.model, given), ours)
    assert 0 < clipped < len(batch.index_n()) or case.ours.get("loss") == "soft"


@pytest.mark.parametrize("packed", [False, True])
def test_a_step_of_whole_answers_is_that_of_trl(packed: bool, tmp_path: Path) -> None:
    """RLOO: the ratio of an answer is the product of its tokens', and its loss no mean over these."""
    options = {"mean": "answer", "loss": "whole", "baseline": "others", "scale": "none"}
    ours = Ours(
        tmp_path,
        GrpoConfig(clip_low=LOW, **options),
        Case(options, {}, apart=0.005, shifts=[each / 6 for each in SHIFTS]),
    )
    batch, loss, clipped = ours.step(packed=packed)
    trainer = ours.trainer("RLOOTrainer", "RLOOConfig", {"epsilon": LOW, "epsilon_high": HIGH})
    given = ours.inputs() | {"old_logps": padded(ours.old, 0.0).sum(1)}
    assert_equal(loss, trainer._compute_loss(trainer.model, given), ours)
    assert 0 < clipped < len(batch.index_n())


class Ours:
    """An objective with answers whose old, reference and sampler's log-probabilities are near those of the model."""

    def __init__(self, folder: Path, config: GrpoConfig, case: Case) -> None:
        self.trl = pytest.importorskip("trl")
        self.folder, self.theirs = folder, save(folder / "policy", 1)
        self.model = load_weights("llama", folder / "policy").model
        config = config.model_copy(update={"clip_high": HIGH, "max_new_tokens": 8, "group": 4, "updates": 2})
        self.objective = GrpoObjective(_Pad(), None, config, {"one": Length(LengthConfig(most=1, ramp=1))})  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(3)

        def near(apart: float, shifts: Sequence[float] = (0.0, 0.0, 0.0, 0.0)) -> list[list[float]]:
            drawn = [torch.randn(len(each), generator=generator) for each in ANSWERS]
            noise = [shift + apart * each for shift, each in zip(shifts, drawn, strict=True)]
            return [(own - each).tolist() for own, each in zip(self.logprobs(), noise, strict=True)]

        self.old, self.reference, self.sampled = near(case.apart, case.shifts), near(1.0), near(0.5)

    def logprobs(self) -> list[Tensor]:
        """Those of each answer's tokens."""
        found = []
        for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
            ids = torch.tensor([*prompt, *answer])
            with torch.no_grad():
                logits = self.theirs(ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(1)
            found.append(logits.gather(1, ids[len(prompt) :, None])[:, 0])
        return found

    def step(self, *, packed: bool) -> tuple[Batch, Tensor, float]:
        """The batch, its loss, and how many tokens were clipped."""
        values = zip(PROMPTS, ANSWERS, self.old, self.reference, self.sampled, strict=True)
        records = [
            {
                "row_id": "row",
                "group": 0,
                "prompt": prompt,
                "ids": answer,
                "finish": "eos",
                "rewards": {"one": 0.0},
                "old": old,
                "reference": reference,
                "sampled": sampled,
            }
            for prompt, answer, old, reference, sampled in values
        ]
        samples, _ = self.objective.learn(records)
        for sample, answer, gained in zip(samples, ANSWERS, GAINED, strict=True):
            sample.token_values["advantage"][-len(answer) :] = [gained] * len(answer)  # type: ignore[index]
        rows = [samples] if packed else [[each] for each in samples]
        length = max(sum(len(each.ids) for each in row) for row in rows) + 2
        batch = self.objective.collate(rows, length=length).with_index()
        sums = self.objective.loss(self.model(batch), self.model.head, batch)
        clipped = float(sums.metrics["clipped_low"][0]) + float(sums.metrics["clipped_high"][0])
        return batch, sums.loss_sum / self.objective.count(batch), clipped

    def trainer(self, kind: str, config: str, options: Mapping[str, Any]) -> Any:
        """TRL's trainer of the same model."""
        from datasets import Dataset

        arguments = getattr(self.trl, config)(
            output_dir=str(self.folder),
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            use_cpu=True,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            beta=0.0,  # else it loads a reference from the hub
            **options,
        )
        trainer = getattr(self.trl, kind)(
            model=self.theirs,
            reward_funcs=lambda completions, **more: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "abc"}] * 8),
            processing_class=tokenizer(),
        )
        trainer.model.train()
        return trainer

    def inputs(self) -> dict[str, Tensor]:
        """What both of its trainers are given."""
        return {
            "prompt_ids": torch.tensor(PROMPTS),
            "prompt_mask": torch.ones(4, 4, dtype=torch.long),
            "completion_ids": padded(ANSWERS, PAD).long(),
            "completion_mask": padded([[1] * len(each) for each in ANSWERS], 0).long(),
            "advantages": torch.tensor(GAINED),
        }


def padded(values: Values, fill: float) -> Tensor:
    """(4, T), filled up on the right."""
    return torch.tensor([[*each, *[fill] * (LONGEST - len(each))] for each in values])


def assert_equal(ours: Tensor, theirs: Tensor, models: Ours) -> None:
    """Compare losses, and the gradients of all weights together."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=TOLERANCE)
    one, other = gradient(ours, models.model), gradient(theirs, models.theirs)
    apart = torch.stack([(one[name] - other[name]).norm() for name in one]).norm()
    length = torch.stack([each.norm() for each in other.values()]).norm()
    assert apart <= TOLERANCE * length
    assert length > 0
    assert max(token for row in ANSWERS for token in row) < VOCABULARY
