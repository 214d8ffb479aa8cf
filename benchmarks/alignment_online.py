"""Both sides of ``alignment.py --what grpo``: iterations of answers that a model writes and learns from, here and in TRL.

Answers come in two forms. ``equal``: the end token is so unlikely that every answer is as long as it may be, so that both sides write and
learn from equally many tokens. ``ragged``: about one token in 24 is an end.
"""

from __future__ import annotations

import importlib
import json
import math
import random
import resource
import runpy
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROMPTS, GROUP, NEW_TOKENS, ITERATIONS = 4, 8, 48, 5
"""Prompts of an iteration, answers to each, tokens of an answer at most, and iterations, of which the first is not counted."""
RATE = 1e-9
"""So small that answers stay as long as they are at first: one step at 1e-6 made ends a third rarer."""
COMPARED, TOLERANCE = ("loss", "grad_norm", "reward", "entropy"), 1e-5
"""Figures of each step that are compared where both sides learn from the same answers; loss and reward must agree."""
ENDS = {"equal": 1e-12, "ragged": 1 / 24}
"""How likely a token is an end, about, in the model that both sides begin with."""
REWARD = '''
def share(text):
    """Share of words whose number is even."""
    words = [word[1:] for word in text.split() if word[1:].isdigit()]
    return sum(int(word) % 2 == 0 for word in words) / max(len(words), 1)


def score(answers):
    """The reward of ours."""
    return [share(answer.text) for answer in answers]
'''


class Timer:
    """Processor seconds of functions of the trainer, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.ends: dict[str, list[float]] = {}
        """When each call ended."""

    def watch(self, module: str, name: str) -> None:
        """Add up the seconds of a function, or of a method as ``Class.method``."""
        *owners, last = name.split(".")
        owner = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        call = getattr(owner, last)

        def timed(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return call(*given, **named)
            finally:
                ended = time.process_time()
                self.seconds[last] = self.seconds.get(last, 0.0) + ended - began
                self.ends.setdefault(last, []).append(ended)

        setattr(owner, last, timed)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def write_online(folder: Path, vocabulary: int) -> int:
    """Write prompts, the reward, and a model for each form of answers; returns how many tokens the answers of an iteration have at most."""
    chance = random.Random(0)
    rows = [
        {"prompt": " ".join(f"w{chance.randrange(10, vocabulary)}" for _ in range(chance.randint(16, 48)))}
        for _ in range(PROMPTS * ITERATIONS)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "reward.py").write_text(REWARD, "utf-8")
    for form, likely in ENDS.items():
        write_ending(folder / "model", folder / form, math.log(likely * vocabulary))
    return PROMPTS * GROUP * NEW_TOKENS


def write_ending(source: Path, target: Path, logit: float) -> None:
    """Copy a model, with a logit for the end token that is about the same everywhere; those of all other tokens are near 0."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source)
    with torch.no_grad():  # one entry of the hidden state is about the same everywhere; only the end token looks at it
        model.get_input_embeddings().weight[:, 0] = 1.0
        level = model.model(torch.arange(10, 42)[None]).last_hidden_state[..., 0].mean()
        head = model.get_output_embeddings().weight
        head[:, 0] = head[1] = 0.0
        head[1, 0] = logit / level
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)


def our_online_config(folder: Path, form: str, objective: str, *, lora: bool) -> dict[str, Any]:
    """Return a run of an online objective, without checkpoints on its way."""
    raw: dict[str, Any] = {
        "model": {"name": "llama", "weights": str(folder / form)},
        "tokenizer": {"name": "huggingface", "path": str(folder / form)},
        "objective": {"name": objective, "prompts": PROMPTS, "group": GROUP, "max_new_tokens": NEW_TOKENS},
        "rewards": [{"name": "python", "path": str(folder / "reward.py")}],
        "dataset": {"name": "jsonl", "path": str(folder / "prompts.jsonl")},
        "data": {"eval": None, "cache": "none", "shuffle": False},
        "train": {
            "steps": ITERATIONS,
            "micro_batch_size": PROMPTS * GROUP,
            "sequence_len": 256,
            "clip_norm": 1.0,
        },
        "optimizer": {"name": "adamw", "lr": RATE, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0},
        "schedule": "constant",
        "checkpoint": {"every_steps": 10_000},
    }
    if lora:
        raw["adapter"] = {"weights": str(folder / "lora")}
    return raw


def run_ours(folder: Path, form: str, objective: str, lora: bool) -> dict[str, Any]:
    """Train through mt_train, and note the seconds of its parts."""
    from mt_train import train

    timer = Timer()
    timer.watch("mt_train.assemble.policy", "LivePolicy.generate")
    timer.watch("mt_train.assemble.policy", "LivePolicy.measure")
    timer.watch("mt_plugin_alignment.objectives.answers", "score_answers")
    timer.watch("mt_train.engine.engine", "Engine.train_step")
    output = folder / f"run-{time.time_ns()}"
    raw = our_online_config(folder, form, objective, lora=lora)
    train(raw, output=output)
    records = read_lines(output / "metrics.jsonl")
    return {
        "ends": timer.ends["train_step"],
        "parts": timer.seconds,
        "records": [{name: each[name] for name in COMPARED} for each in records],
        "answers": [each["answer_tokens"] for each in records],
        "output": str(output),
    }


def run_grpo_of_trl(folder: Path, form: str, lora: bool, recorded: Path | None) -> dict[str, Any]:
    """Train through TRL, with answers of its own or those that a run of ours wrote down."""
    from datasets import load_dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    share = runpy.run_path(str(folder / "reward.py"))["share"]
    arguments = GRPOConfig(
        str(folder / "trl"),
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        temperature=1.0,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        shuffle_dataset=False,
        report_to="none",
        use_cpu=True,
        per_device_train_batch_size=PROMPTS * GROUP,
        gradient_accumulation_steps=1,
        max_steps=ITERATIONS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train", cache_dir=str(folder / "hf"))
    model = AutoModelForCausalLM.from_pretrained(folder / form, dtype="float32")
    ends: list[float] = []

    class Ends(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *given: Any, **named: Any) -> None:
            ends.append(time.process_time())

    class Replayed(GRPOTrainer):  # type: ignore[misc]
        """Writes what a run of ours wrote down."""

        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
            chosen = [next(answers) for _ in prompt_ids]
            assert [each["prompt"] for each in chosen] == list(map(list, prompt_ids)), (
                "other prompts, or in another order"
            )
            return [each["ids"] for each in chosen], None

    trainer = (Replayed if recorded else GRPOTrainer)(
        model=PeftModel.from_pretrained(model, folder / "lora", is_trainable=True) if lora else model,
        reward_funcs=lambda completions, **named: [share(text) for text in completions],
        args=arguments,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(folder / form),
        callbacks=[Ends()],
    )
    answers = iter(read_lines(recorded / "rollouts.jsonl") if recorded else ())
    trainer.train()
    history = [each for each in trainer.state.log_history if "loss" in each]
    return {
        "ends": ends,
        "records": [{name: each[name] for name in COMPARED} for each in history],
        "answers": [each["completions/mean_length"] for each in history],
    }


THEIRS: dict[str, Callable[..., dict[str, Any]]] = {"grpo": run_grpo_of_trl}
"""Objective -> the trainer of TRL that is beside it; of others there is ours alone."""


def run_online(objective: str, side: str, folder: Path, lora: bool) -> dict[str, Any]:
    """Train once in this process. A side is ``ours`` or ``theirs``, the form of the answers, and perhaps a run whose answers are taken."""
    import torch

    torch.set_num_threads(1)
    who, form, *recorded = side.split(" ")
    if who == "ours":
        found = run_ours(folder, form, objective, lora)
    else:
        found = THEIRS[objective](folder, form, lora, Path(recorded[0]) if recorded else None)
    return {**found, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def seconds_of_iteration(made: Sequence[dict[str, Any]]) -> float:
    """Return the median over all runs and all iterations but the first of each."""
    return statistics.median(  # type: ignore[no-any-return]
        ended - began for each in made for began, ended in zip(each["ends"], each["ends"][1:], strict=False)
    )


def check_same(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Compare two runs that learned from the same answers, and return by how much their figures differ at most."""
    assert ours["answers"] == theirs["answers"], "answers of other lengths"
    apart = {
        name: max(abs(one[name] - other[name]) for one, other in zip(ours["records"], theirs["records"], strict=True))
        for name in COMPARED
    }
    assert max(apart["loss"], apart["reward"]) < TOLERANCE, f"figures differ by {apart}: nothing is compared"
    return ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
