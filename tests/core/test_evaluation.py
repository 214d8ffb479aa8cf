"""What is refused before anything is asked: figures with odd names, and options that no run could pace."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mt_core import ANY, ComponentError, MtConfig
from mt_core.evaluation import EvaluationComponent, EvaluationConfig, Findings, figure_prefix


@pytest.mark.parametrize("name", ["Accuracy", "rouge-l", "f1 score", "", "größe", "a.b"])
def test_a_figure_has_lower_case_letters_digits_and_underscores(name: str) -> None:
    with pytest.raises(ComponentError, match="is no name of a figure; use lower-case letters, digits and '_'"):
        Findings(figures={name: 1.0})
    with pytest.raises(ComponentError, match="is no name of a figure"):
        Findings(figures={"accuracy": 1.0}, groups={"Law & order": {name: 1.0}})


def test_groups_are_named_as_they_like() -> None:
    assert Findings(figures={"f1_2": 1.0}, groups={"Law & order": {"f1_2": 1.0}}).groups["Law & order"] == {"f1_2": 1.0}


def test_options_of_an_evaluation_have_its_pace() -> None:
    plain = EvaluationComponent(name="plain", summary="asks", needs=frozenset({"scores"}))
    assert plain.config is EvaluationConfig
    assert plain.config().every == 1  # type: ignore[attr-defined]
    assert plain.layouts == ANY
    with pytest.raises(ComponentError, match=r"config of 'odd' is MtConfig; derive it from .*EvaluationConfig"):
        EvaluationComponent(name="odd", summary="asks", needs=frozenset({"scores"}), config=MtConfig)


def test_it_is_imported_without_torch() -> None:
    code = "import sys, mt_core.evaluation, mt_core.generation; assert 'torch' not in sys.modules, 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_figures_of_an_evaluation_begin_with_its_short_name() -> None:
    assert figure_prefix("mmlu") == "eval_mmlu_"
    assert figure_prefix("mt-plugin-evals/mmlu-pro") == "eval_mmlu_pro_"
