"""How conversations are written down."""

from __future__ import annotations

from collections.abc import Sequence

from mt_core.protocols import Encoded, Message, Template, Tokenizer


def build_template(tokenizer: Tokenizer) -> Template:
    """The run's template."""
    return PlainTemplate(tokenizer)


class PlainTemplate:
    """Begin, what was said, and an end after each turn of the assistant, which is trained on. Nothing is put between turns."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, messages: Sequence[Message]) -> Encoded:
        """See ``Template``."""
        bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_id
        ids: list[int] = [] if bos is None else [bos]
        trained = [False] * len(ids)
        context = ""
        for message in messages:
            if message["role"] != "assistant":
                context += message["content"]
                continue
            before, after = self._boundary(context, message["content"])
            after = [*after, *([] if eos is None or not after else [eos])]
            ids += before + after
            trained += [False] * len(before) + [True] * len(after)
            context = ""
        return Encoded(ids, trained)

    def _boundary(self, prompt: str, response: str) -> tuple[list[int], list[int]]:
        """Ids of the prompt and of the response.

        The prompt's ids are those that generation will see, where it stands alone; a token that straddles the boundary
        would show the model a context that never comes, and leave the start of the response without loss. So the
        response is tokenised as a continuation, with its natural ids (``▁yes`` after ``Answer:``, no second space), where
        that leaves the prompt's ids as they are, and alone where the tokenizer would merge across the boundary.
        """
        context_ids = self._tokenizer.encode(prompt)
        joint_ids = self._tokenizer.encode(prompt + response)
        if joint_ids[: len(context_ids)] == context_ids:
            return context_ids, joint_ids[len(context_ids) :]
        return context_ids, self._tokenizer.encode(response)
