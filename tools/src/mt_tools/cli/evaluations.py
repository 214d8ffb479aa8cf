"""The evaluations of ``mt-eval``: asked of each model, printed, or only counted (``--dry-run``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core.evaluation import Findings
from mt_tools.cli.tables import align
from mt_train.assemble.parts import Parts

MOST_GROUPS = 70
"""Lines of a table by groups that are printed; MMLU has 57 subjects and 4 categories."""


def describe_requests(parts: Parts) -> str:
    """Describe what each evaluation would ask, without loading weights: counts, notes, and prompts with the scored part marked."""
    from mt_train.assemble.evaluations import ask
    from mt_train.assemble.subjects import paper_subject

    lines = []
    for name, evaluation in parts.evaluations().items():
        subject = paper_subject(parts)
        findings = ask(name, evaluation, subject).findings
        count = subject.count
        asked = [f"{number:,} {what}" for number, what in ((count.scores, "scores"), (count.texts, "texts")) if number]
        written = f", and to write at most {count.new_tokens:,}" if count.new_tokens else ""
        lines += [
            f"{name}: {' and '.join(asked) or 'nothing'} asked of the model",
            f"  tokens to read {count.tokens:,} (common beginnings are read once){written}; longest prompt {count.longest:,} of"
            f" {subject.max_seq_len:,}",
            *_notes(findings),
        ]
        for number, each in enumerate(count.examples, 1):
            mark = f"⟦{each.scored}⟧" if each.scored else "⟦…⟧"
            lines += [f"  prompt {number}, with the scored part in ⟦⟧:", *_indent(f"{each.prompt}{mark}")]
    return "\n".join(lines)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """One line a figure, models side by side; then each evaluation's notes, and the groups of the last model."""
    models = list(dict.fromkeys(str(result["model"]) for result in results))
    figures: dict[tuple[str, str], dict[str, float]] = {}
    for result in results:
        for name, value in result["figures"].items():
            figures.setdefault((str(result["evaluation"]), name), {})[str(result["model"])] = value
    rows = [["evaluation", "figure", *models]]
    rows += [[*key, *(_number(values.get(model)) for model in models)] for key, values in figures.items()]
    lines = align(rows, texts=2)
    last = {str(result["evaluation"]): result for result in results}
    for name, result in last.items():
        lines += [f"{name}: {text}" for text in result["notes"]]
        lines += [f"{name}, {figure}: {signature}" for figure, signature in result["signatures"].items()]
        lines += _group_lines(name, result["groups"])
    return "\n".join(lines)


def _group_lines(name: str, groups: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not groups:
        return []
    names = list(dict.fromkeys(figure for figures in groups.values() for figure in figures))
    rows = [[f"{name} by group", *names]]
    whole = {each for each in names if _counts([values.get(each) for values in groups.values()])}
    rows += [[group, *(_number(values.get(each), each in whole) for each in names)] for group, values in groups.items()]
    lines = align(rows[: MOST_GROUPS + 1], texts=1)
    more = len(rows) - 1 - MOST_GROUPS
    return ["", *lines, *([f"… and {more} more in metrics.json"] if more > 0 else [])]


def _counts(values: Sequence[float | None]) -> bool:
    """Return whether a column counts something: whole numbers, of which one is above 1."""
    known = [value for value in values if value is not None]
    return all(float(value).is_integer() for value in known) and max(known, default=0) > 1


def _number(value: float | None, whole: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if whole else f"{value:.4f}"


def _notes(findings: Findings) -> list[str]:
    return [f"  {text}" for text in findings.notes]


def _indent(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]
