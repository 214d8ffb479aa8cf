"""Draws preferences.png: two runs of DPO on a small model. ``python docs/images/preferences.py`` trains them again, in three minutes."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).with_name("preferences.png")
NAMES = "Ann Bob Cy Dora Eve Finn Gus Hana Ida Jon Kim Lea Max Nora Otto Pia Quin Rosa Sam Tess Uma Vic Wes Xia Yan Zoe"
THINGS = "bread soup cake rice tea pie salad pasta fish corn beans plums figs nuts"
POLITE = ("Gladly, {name}: {thing} is on its way.", "Of course, {name}, your {thing} comes at once.")
RUDE = ("No, {name}: {thing} is not on its way.", "Get your {thing} yourself, {name}.")

SMALL = "mt-train --model llama --dataset jsonl --train.sequence-len 128"
FIRST = f"{SMALL} --objective sft --dataset.path sft.jsonl --train.steps 250 --output sft"
SECOND = (
    f"{SMALL} --model.weights sft-hf --objective dpo --dataset.path pairs.jsonl --train.steps 60 --optimizer.lr 1e-4"
)
RUNS = {"DPO": SECOND + " --output dpo", "with --objective.sft 1": SECOND + " --objective.sft 1 --output anchored"}
"""Name of each line of the picture, and the command that it is of."""

Records = Sequence[Mapping[str, Any]]


def rows(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Somebody wants something, and is answered politely (chosen) and rudely (rejected)."""
    draw = random.Random(seed)
    for _ in range(count):
        said = {"name": draw.choice(NAMES.split()), "thing": draw.choice(THINGS.split())}
        sides = {side: draw.choice(texts).format(**said) for side, texts in (("chosen", POLITE), ("rejected", RUDE))}
        yield {"prompt": "{name} wants {thing}.\n".format(**said), **sides}


def train() -> dict[str, Records]:
    """The records of both runs. Raises ``CalledProcessError`` where one fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw = random.Random(2)
        given = [
            {"prompt": row["prompt"], "response": row[draw.choice(("chosen", "rejected"))]} for row in rows(900, 0)
        ]
        for file, lines in {"sft": given, "pairs": list(rows(480, 1))}.items():
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        for command in (FIRST, "mt-convert sft sft-hf", *RUNS.values()):
            subprocess.run(command.split(), cwd=folder, check=True)
        files = {title: folder / command.split()[-1] / "metrics.jsonl" for title, command in RUNS.items()}
        return {
            title: [json.loads(line) for line in file.read_text("utf-8").splitlines()] for title, file in files.items()
        }


def draw(records: Mapping[str, Records], path: Path) -> None:
    """Log-probabilities of both answers, and the margin, of each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (title, lines), style in zip(records.items(), ("-", "--"), strict=True):
        steps = [line for line in lines if "logp_chosen" in line]
        places = [line["step"] for line in steps]
        for name, color in (("chosen", "tab:green"), ("rejected", "tab:red")):
            values = [line[f"logp_{name}"] for line in steps]
            left.plot(places, values, style, color=color, label=f"{name}, {title}")
        right.plot(places, [line["reward_margin"] for line in steps], style, color="tab:blue", label=title)
    left.set(title="log-probability of answers", xlabel="step", ylabel="nats")
    right.set(title="reward_margin", xlabel="step", ylabel="β × log-ratio (nats)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    draw(train(), PICTURE)
