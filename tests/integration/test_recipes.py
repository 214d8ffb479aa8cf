"""Each installed recipe is planned on paper, and trains two steps of a few rows at a tiny size, with all its other keys as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mt_core.plugins.host import PluginHost
from mt_tools.cli.convert import main as convert
from mt_train.cli.train import main
from mt_train.config.files import read_config
from mt_train.plugins.modules import load_plugins
from mt_train.plugins.recipes import KIND, read_recipe, recipe_file

HOST = load_plugins()
RECIPES = {offer.component.name: offer for offer in HOST.offers(KIND)}
DNA = "ACGTTGCA"
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
ROWS: dict[str, list[dict[str, Any]]] = {
    "answers": [{"prompt": f"What is {n} and {n}?", "response": f" It is {2 * n}."} for n in range(32)],
    "pairs": [{"prompt": f"Say {n}.", "chosen": f" {n}", "rejected": f" {n + 1}"} for n in range(64)],
    "prompts": [{"prompt": f"What is {n} and {n}?", "answer": str(2 * n)} for n in range(8)],
    "images": [{"prompt": "<image> What is it?", "images": [PIXEL], "response": f" Picture {n}."} for n in range(32)],
    "dna": [{"prompt": "<dna> What is it?", "dna": [DNA * 4], "response": f" Gene {n}."} for n in range(32)],
    "instructions": [{"instruction": f"Add {n} and {n}.", "input": "", "output": f"{2 * n}"} for n in range(32)],
    "turns": [
        {
            side: [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"{n + more}"}]
            for more, side in enumerate(("chosen", "rejected"))
        }
        for n in range(64)
    ],
    "gsm8k": [{"question": f"What is {n} and {n}?", "answer": f"Twice.\n#### {2 * n}"} for n in range(8)],
}
SHAPES = {
    "pretrain": "text.txt",
    "dpo": "pairs.jsonl",
    "reward": "pairs.jsonl",
    "llama-1b-ultrafeedback-dpo": "turns.jsonl",
    "grpo": "prompts.jsonl",
    "images": "images.jsonl",
    "dna-caption": "dna.jsonl",
    "qwen-gsm8k-grpo": "gsm8k.jsonl",
    "llama-1b-alpaca-lora": "instructions.jsonl",
    "llama-8b-alpaca-qlora": "instructions.jsonl",
}
"""Recipe → the rows that it takes, where these are no answers."""
NEEDED = {
    "grpo": ["--rewards.python.path", "{rows}/reward.py"],
    "sft-exam": ["--evaluations.mmlu.path", "{rows}/mmlu"],
}
SMALL = {
    "grpo": ["--objective.max-new-tokens", "4"],
    "qwen-gsm8k-grpo": ["--objective.max-new-tokens", "4"],
    "images": ["--encoders.siglip.image", "8", "--encoders.siglip.patch", "4"],
    "dna-caption": ["--encoders.hyenadna.dim", "16"],
}
SIZES = {"images": ["--encoders.siglip.size", "so400m-14-384"], "llama-8b-full": ["--nproc-per-node", "8"]}
"""What of the page's figures is not in the recipe."""
TINY = {"qwen": "2.5-tiny", "gemma": "3-tiny"}


@pytest.fixture(autouse=True)
def _only_what_a_recipe_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins have been looked for."""
    monkeypatch.setattr(PluginHost, "discover", lambda selection=None, more=(): HOST)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name, content in ROWS.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    (folder / "text.txt").write_text("The fox saw ripe grapes on a high vine, and jumped. " * 400)
    (folder / "reward.py").write_text("def score(answers):\n    return [float(len(each.text)) for each in answers]\n")
    for split in ("dev", "test"):
        (folder / "mmlu" / split).mkdir(parents=True)
        lines = [f"Which is {n}?,{n},8,9,7,A" for n in range(6)]
        (folder / "mmlu" / split / f"astronomy_{split}.csv").write_text("\n".join(lines))
    return folder


def command(name: str, rows: Path, size: str = "") -> list[str]:
    """Words of ``mt-train`` for a recipe with a model of this size, else a tiny one, and rows that are here; the rest is its own."""
    text = recipe_file(RECIPES[name]).read_text()
    found = re.search(r"^model: \{name: ([\w-]+)", text, re.MULTILINE)
    family = found[1] if found else "llama"
    words = ["--recipe", name, "--model", family, "--model.variant", size or TINY.get(family, "tiny")]
    words += ["--dataset.path", str(rows / SHAPES.get(name, "answers.jsonl"))]
    words += [] if size else ["--train.sequence-len", "256", *SMALL.get(name, [])]
    if not size and (micro := re.search(r"micro_batch_size: (\d+), global_batch_size", text)):
        words += ["--train.global-batch-size", str(2 * int(micro[1]))]  # it accumulates, as with its own 16 to 128 rows
    words += ["--model.weights", "none"] if "weights:" in text else []
    words += ["--data.template", "chatml"] if "template: own" in text else []
    words += ["--data.eval", "4"] if "eval: 500" in text else []
    return words + [word.format(rows=rows) for word in NEEDED.get(name, [])]


def run(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main(words)
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_trains(name: str, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([*command(name, rows), "--train.steps", "2", "--output", str(tmp_path / "run")], capsys)
    losses = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(record.get("step", 0) for record in losses) == 2


def test_a_recipe_asks_for_nothing_that_its_installation_lacks_unless_it_names_a_model() -> None:
    """General recipes are met by the distribution that ships them and what a run always has."""
    lacking = []
    for name in ("dpo", "reward", "grpo", "lora", "sft", "pretrain", "qlora", "images", "dna-caption", "sft-exam"):
        allowed = {RECIPES[name].plugin.distribution, "mt-plugin-standard", "mt-train"}
        for layer in read_recipe(name, HOST):
            for kind, chosen in layer.raw.items():
                named = chosen.get("name") if isinstance(chosen, dict) else chosen
                if kind not in HOST.kinds or not isinstance(named, str):
                    continue
                distribution = HOST.get(kind, named).plugin.distribution
                if distribution not in allowed:
                    lacking.append((name, kind, named, distribution))
    assert lacking == []


PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
PLANNED = [
    (name.strip("`"), with_, float(gib))
    for names, with_, gib in re.findall(r"^\| (`.*?`) \| .* \| (.*) \| ([\d.]+) \|$", PAGE.read_text(), re.MULTILINE)
    for name in names.split(", ")
]


def test_the_page_has_every_recipe() -> None:
    assert sorted(name for name, _, _ in PLANNED) == sorted(RECIPES)


@pytest.mark.parametrize(("name", "model", "gib"), PLANNED)
def test_a_recipe_is_planned_with_the_memory_on_the_page(
    name: str, model: str, gib: float, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = "-".join(model.partition(",")[0].removesuffix(" Instruct").lower().split()[1:])
    on = ["--train.dtype", "bf16", "--dry-run", "--gpu", "h100-80g", *SIZES.get(name, [])]
    said = run([*command(name, rows, size), *on], capsys)
    found = re.search(r"^each rank .* ([\d.,]+)$", said, re.MULTILINE)
    assert found, said
    assert float(found[1].replace(",", "")) == pytest.approx(gib, abs=0.06)


def test_lora_dpo_and_grpo_follow_one_another(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each trains on from the adapter of the one before, though the recipes' own ranks and dropouts differ."""
    few = ["--train.steps", "2", "--data.eval", "none", "--train.sequence-len", "256"]
    run(["--model", "llama", *few, "--output", str(tmp_path / "first")], capsys)
    weights = str(tmp_path / "base")
    assert convert([str(tmp_path / "first"), weights]) == 0
    before: Path | None = None
    for name, kind in (("lora", "answers"), ("dpo", "pairs"), ("grpo", "prompts")):
        words = ["--recipe", name, "--model.weights", weights, "--dataset.path", str(rows / f"{kind}.jsonl")]
        words += [*few, *SMALL.get(name, []), "--output", str(tmp_path / name)]
        words += [word.format(rows=rows) for word in NEEDED.get(name, [])]
        if name != "grpo":
            words += ["--train.global-batch-size", "4"]
        if before is not None:
            words += ["--adapter.weights", str(before)]
        run(words, capsys)
        before = tmp_path / name
        written = read_config(before / "run.yaml")["adapter"]
        assert (written["name"], written["rank"], written["alpha"]) == ("lora", 16, 32)
        assert written["dropout"] == (0.05 if name == "lora" else 0.0)
    words[words.index("--output") + 1] = str(tmp_path / "other")
    assert main([*words, "--adapter.rank", "8"]) == 1
    assert "rank is 16 there and 8 in the run" in capsys.readouterr().err, "what somebody says is not taken back"
    for place in (tmp_path / "lora", next((tmp_path / "lora" / "checkpoints").glob("step-*"))):
        assert main(["--model.weights", str(place), "--dataset.path", str(rows / "answers.jsonl")]) == 2
        said = capsys.readouterr().err
        assert f"train on with --model.weights {weights} --adapter.weights {place}" in said
        assert f"`mt-export --run {tmp_path / 'lora'} --merge --output FOLDER`" in said
