"""Base of objectives that learn from the model's own answers: rows are prompts, and an iteration is collected by a writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mt_core import DataError, Row, Sample
from mt_core.nn import TokenObjective

from .answers import AnswerWriter
from .tool_rounds import with_read

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer
    from mt_train import Policy, Prompt, Record

    from ..reward_functions.base import Reward
    from ..samplers.base import Sampler
    from .answer_options import AnswerOptions


class OnlineObjective(TokenObjective):
    """Rows with prompts, which the model answers. Subclasses say what is learned of the answers (``learn``), and have a loss."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Template,
        options: AnswerOptions,
        rewards: Mapping[str, Reward],
        sampler: Sampler | None = None,
        *,
        writer: AnswerWriter | None = None,
    ) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self._template, self._group = template, options.group
        self._writer = writer or AnswerWriter(options, rewards, sampler, tokenizer, template)
        self.prompts, self.updates, self.passes = options.prompts, options.updates, options.passes
        self.max_new_tokens, self.replay = options.max_new_tokens, options.replay

    def encode(self, row: Row) -> Sample:
        """The prompt of a row. Raises ``DataError`` for a row without one, or with media."""
        turns = self._writer.read_prompt(row)
        if any(turn.get("media") for turn in turns):
            raise DataError(
                f"{row['id']}: the prompt has media, and objectives that learn from the model's own answers read text alone. Leave such"
                " rows out (--data.on-bad-row skip), or learn from pairs of answers (--objective dpo), which may have media."
            )
        ids = self._template.prompt(turns)
        return Sample(ids, [False] * len(ids), row["id"])

    def collect(
        self, prompts: Sequence[Prompt], policy: Policy, *, seed: int, previous: Sequence[Record]
    ) -> list[dict[str, Any]]:
        """Answers to each prompt with their scores. Raises ``ComponentError`` for a sampler or a reward that fails."""
        return self._writer.write(prompts, policy, seed=seed)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return what parts of the last ``collect`` took (seconds)."""
        return self._writer.watch.seconds


def sample_of(
    record: Mapping[str, Any],
    values: Mapping[str, Sequence[float]] | None = None,
    document_values: Mapping[str, Sequence[float]] | None = None,
) -> Sample:
    """A prompt and its answer, whose tokens are trained; ``values`` are numbers of the answer's tokens, by name.

    What the model read of tools stands between its own tokens, and is not trained.
    """
    prompt, ids = record["prompt"], record["ids"]
    read: dict[int, list[int]] = dict(record.get("read", ()))
    nothing = {place: [0.0] * len(each) for place, each in read.items()}
    of_tokens = {name: [*(0.0 for _ in prompt), *with_read(each, nothing)] for name, each in (values or {}).items()}
    trained = with_read([True] * len(ids), {place: [False] * len(each) for place, each in read.items()})
    whole = [*prompt, *with_read(ids, read)]
    return Sample(whole, [False] * len(prompt) + trained, record["row_id"], None, (), document_values or {}, of_tokens)
