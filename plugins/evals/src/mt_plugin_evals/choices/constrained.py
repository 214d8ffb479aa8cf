"""Answers that the model writes itself, bound to the choices, beside the ones that it finds likeliest."""

from __future__ import annotations

from collections.abc import Sequence

from mt_core import ComponentError, UsageError
from mt_core.evaluation import Findings, Subject
from mt_core.generation import GenerationConfig, SamplingRules

from ..figures import mean, standard_error
from ..pairs import move_spaces
from .evaluation import ChoiceEvaluation, counts_of, score_answers
from .requests import QuestionRequests
from .tables import notes_of

_SPARE = 8
"""Tokens beyond those of the longest choice: a text of its own may have other tokens than one after a prompt."""


class ConstrainedChoice(ChoiceEvaluation):
    """Decodes greedily under a trie of the choices: the likeliest first token, then the likeliest that goes on with a choice.

    Where choices are single tokens, that is the choice with the highest score; among longer ones the first token decides early.
    """

    spare = _SPARE + 1  # what is written ends with a token of its own

    def check(self, subject: Subject) -> None:
        """See ``ChoiceEvaluation``. Raises ``UsageError`` for a question whose choices have prompts of their own."""
        _require_one_prompt(self._requests(subject).asked)

    def run(self, subject: Subject) -> Findings:
        """Score all choices, and let the model write. Raises ``UsageError`` on a layout without texts, before any forward."""
        if not subject.texts:
            raise UsageError(
                "constrained-choice lets the model write, which a pipeline and ranks that share rows cannot. Run it with mt-eval on a"
                " checkpoint, or take multiple-choice, which scores on every layout."
            )
        requests = self._requests(subject)
        _require_one_prompt(requests.asked)
        answers = score_answers(requests.asked, self._question_set, subject)
        written = _decode(requests.asked, subject, alone=self._question_set.form.alone)
        right = [float(choice in each.question.right) for choice, each in zip(written, requests.asked, strict=True)]
        same = mean([float(choice == answer.predicted) for choice, answer in zip(written, answers, strict=True)])
        scored = [name for name in ("accuracy", "accuracy_pmi") if name in answers[0].measures]
        values = {"accuracy_decoded": right} | {name: [each.measures[name] for each in answers] for name in scored}
        figures = {**{name: mean(each) for name, each in values.items()}, "agreement": same}
        errors = {name: standard_error(each) for name, each in values.items()}
        figures |= {f"{name}_stderr": value for name, value in errors.items() if value is not None}
        counts = counts_of(self._question_set, requests)
        return Findings(
            figures={**figures, **{name: count for name, count in counts.items() if count}},
            rows=[{**answer.row(), "decoded": choice} for answer, choice in zip(answers, written, strict=True)],
            signatures={
                "accuracy_decoded": "greedy under a trie of the choices",
                "accuracy": "highest log-probability",
            },
            notes=list(notes_of(answers, counts)),
        )


def _require_one_prompt(asked: Sequence[QuestionRequests]) -> None:
    for each in asked:
        if len(set(each.prompts)) > 1:
            raise UsageError(
                f"{each.question.id}: each choice has a prompt of its own, so that there is none to go on from. Take multiple-choice."
            )


def _decode(asked: Sequence[QuestionRequests], subject: Subject, *, alone: bool) -> list[int]:
    """Return the place of the choice that was written for each question; questions with the same choices are asked together."""
    same: dict[tuple[str, ...], list[int]] = {}
    for place, each in enumerate(asked):
        # what is scored begins with the spaces that end a prompt, whose ids have none; so must what is written
        targets = each.targets if alone else tuple(move_spaces(each.prompts[0], text)[1] for text in each.targets)
        same.setdefault(targets, []).append(place)
    found = [0] * len(asked)
    for targets, places in same.items():
        most = max(len(pair.target) for place in places for pair in asked[place].pairs)
        config = GenerationConfig(
            rules=SamplingRules(greedy=True), max_new_tokens=most + _SPARE, choices=tuple(dict.fromkeys(targets))
        )
        prompts = [asked[place].pairs[0].context for place in places]
        for place, written in zip(places, subject.generate(prompts, config), strict=True):
            found[place] = _place(written.text, targets)
    return found


def _place(text: str, targets: Sequence[str]) -> int:
    if text not in targets:
        raise ComponentError(
            f"the subject wrote {text!r} where the choices were {', '.join(map(repr, targets))}; its generate has to keep to"
            " GenerationConfig.choices"
        )
    return targets.index(text)
