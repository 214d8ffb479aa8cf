"""What the plugin offers of evaluations that score."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mt_plugin_evals.choices.forms import FORMS
from mt_plugin_evals.choices.subjects import MMLU
from mt_plugin_evals.offers import scored


def test_every_option_is_described_and_every_component_has_summary_and_source() -> None:
    for component in (*scored.EVALUATIONS, *scored.METRICS):
        assert component.summary
        assert component.source.startswith("https://")
        for name, field in component.config.model_fields.items():
            assert field.description, f"{component.name}.{name}"


def test_every_set_with_words_of_its_own_is_an_evaluation() -> None:
    names = {each.name for each in scored.EVALUATIONS}
    assert names - {"multiple-choice", "constrained-choice", "perplexity", "rows"} == FORMS.keys() - {"mmlu-qlora"}


@pytest.mark.parametrize("needs", ["scores", "texts"])
def test_only_what_writes_needs_texts(needs: str) -> None:
    found = {each.name for each in scored.EVALUATIONS if needs in each.needs}
    assert found == ({"constrained-choice"} if needs == "texts" else {each.name for each in scored.EVALUATIONS})


def test_categories_are_those_of_the_harness() -> None:
    lm_eval = pytest.importorskip("lm_eval.tasks")
    from pathlib import Path

    folder = Path(lm_eval.__file__).parent / "mmlu/default"
    tags = {path: path.read_text("utf-8") for path in folder.glob("mmlu_*.yaml")}
    found = {
        path.stem.removeprefix("mmlu_"): text.partition('"mmlu_')[2].partition("_tasks")[0]
        for path, text in tags.items()
    }
    assert found == MMLU


def test_listing_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, mt_plugin_evals.offers.scored;assert not {'torch', 'numpy', 'lm_eval'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
