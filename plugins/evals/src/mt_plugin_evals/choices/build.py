"""Building of evaluations with choices from their options and the datasets that these name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mt_core import Dataset

from .config import ChoiceConfig, MmluConfig, MultipleChoiceConfig
from .constrained import ConstrainedChoice
from .evaluation import ChoiceEvaluation, QuestionSet
from .forms import FORMS, MMLU_ORIGINAL, ROWS, Form
from .questions import Reading, read_questions
from .shots import Shots
from .subjects import MMLU

NO_CATEGORIES: Mapping[str, str] = {}


def build_set(config: ChoiceConfig, *, split: str, parts: Sequence[Dataset], name: str) -> ChoiceEvaluation:
    """Build the evaluation of a set by name."""
    return ChoiceEvaluation(asking_of(config, FORMS[name], parts))


def build_mmlu(config: MmluConfig, *, split: str, parts: Sequence[Dataset]) -> ChoiceEvaluation:
    """Build the evaluation of MMLU, from its folder or from QLoRA's files."""
    name = "mmlu-qlora" if config.whole_prompts else "mmlu"
    form = MMLU_ORIGINAL if config.prompt == "original" else FORMS[name]
    return ChoiceEvaluation(asking_of(config, form, parts, groups=config.subjects, categories=MMLU))


def build_multiple_choice(config: MultipleChoiceConfig, *, split: str, parts: Sequence[Dataset]) -> ChoiceEvaluation:
    """Build the evaluation of rows of any dataset."""
    return ChoiceEvaluation(asking_of(config, form_of(config), parts, skip_unanswered=config.unanswered == "skip"))


def build_constrained(config: MultipleChoiceConfig, *, split: str, parts: Sequence[Dataset]) -> ConstrainedChoice:
    """Build the evaluation whose answers the model writes."""
    return ConstrainedChoice(asking_of(config, form_of(config), parts, skip_unanswered=config.unanswered == "skip"))


def form_of(config: MultipleChoiceConfig) -> Form:
    """Return the words of a question: those of its options, else of the form, else of the dataset's name, else of the rows."""
    form = FORMS.get(config.form or str(config.rows.get("name", "")).rpartition("/")[2], ROWS)
    own = {
        "prompt": config.prompt,
        "target": config.target,
        "description": config.description,
        "delimiter": config.delimiter,
    }
    given = {key: value for key, value in own.items() if value is not None}
    count = config.choices or (None if given else form.count)
    return replace(form, count=count, **given)  # type: ignore[arg-type]


def asking_of(
    config: ChoiceConfig,
    form: Form,
    parts: Sequence[Dataset],
    *,
    groups: tuple[str, ...] = (),
    categories: Mapping[str, str] = NO_CATEGORIES,
    skip_unanswered: bool = False,
) -> QuestionSet:
    """Read the questions, and the rows for shots (the last part), and check all of them."""
    reading = Reading(count=form.count, limit=config.limit, groups=groups, skip_unanswered=skip_unanswered)
    questions, unanswered = read_questions(parts[0], reading)
    everything = replace(reading, limit=None, groups=(), skip_unanswered=True)
    pool = read_questions(parts[-1], everything)[0] if config.shots else []
    return QuestionSet(
        questions=questions,
        form=form,
        shots=Shots(pool, count=config.shots, order=config.shot_order, seed=config.seed),
        unanswered=unanswered,
        too_long=config.too_long,
        unconditional=config.unconditional,
        categories=categories,
    )
