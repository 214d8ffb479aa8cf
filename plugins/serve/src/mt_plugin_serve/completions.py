"""``/v1/completions``: https://platform.openai.com/docs/api-reference/completions. Prompts are texts or ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import MtError
from mt_tools import text_ids
from mt_train.generation import TokenScore

from .answers import Piece, TextAnswer
from .errors import ApiError
from .fields import Fields, flag, only, show, text, whole
from .models import Models, ServedModel
from .plans import Form, Plan, Text, TextOptions, build_requests, refuse_too_many
from .sampling import MOST_TOKENS, read_sampling, read_streaming
from .scores import add_scores, empty_scores

MOST_TOP = 20
DEFAULT_TOKENS = 16
"""New tokens where a request says nothing, as at OpenAI."""
MOST_PROMPTS = 2048
REFUSED = {"suffix": "nothing is filled in between two texts"}


def plan_completion(raw: Mapping[str, Any], models: Models, capacity: int) -> Plan:
    """Return what a request asks for, of at most ``capacity`` texts. Raises ``ApiError`` that names what is wrong with it."""
    fields = Fields(raw)
    model = models.find(fields.require("model", text))
    prompts = fields.require("prompt", lambda value: _read_prompts(value, model))
    model.refuse_media("prompt", (prompt for prompt in prompts if isinstance(prompt, str)))
    echo = fields.take("echo", flag, False)
    top = fields.take("logprobs", whole(0, MOST_TOP), None)
    most = fields.take("max_tokens", whole(0, MOST_TOKENS), DEFAULT_TOKENS)
    if most == 0 and not echo:
        raise ApiError("max_tokens of 0 needs echo: true, or there is nothing to answer", field="max_tokens")
    streaming = read_streaming(fields)
    sampling = read_sampling(fields, model.vocabulary, max(1, most))
    fields.take("best_of", only(sampling.n, why=f"no texts are made to be thrown away; n is {sampling.n}"), None)
    fields.refuse(REFUSED)
    fields.close()
    jobs = max(1, (most > 0) + (echo and top is not None))  # an answer, and log-probabilities of the prompt
    refuse_too_many(len(prompts) * sampling.n * jobs, capacity)
    options = TextOptions(
        model=model, sampling=sampling, streaming=streaming, converses=False, top=top, least=min(1, most)
    )
    names = ["prompt"] if len(prompts) == 1 else [f"prompt[{place}]" for place in range(len(prompts))]
    ids = [_ids(model, prompt, name) for prompt, name in zip(prompts, names, strict=True)]
    texts = []
    for index, (place, request) in enumerate(build_requests(options, ids, names)):
        answer = TextAnswer(model.loaded.tokenizer, top is not None, bool(request.stop), after=request.after)
        shown = _shown(model, prompts[place]) if echo else None
        texts.append(Text(index, request, answer, shown, top if echo else None, continues=most > 0))
    return Plan(model, texts, TextForm(), streaming, sum(map(len, ids)))


def _read_prompts(value: Any, model: ServedModel) -> list[str | list[int]]:
    """Return each prompt, a text or ids. Raises ``ValueError``."""
    if isinstance(value, str) or _is_ids(value):
        listed = [value]
    elif isinstance(value, list) and value and all(isinstance(each, str) or _is_ids(each) for each in value):
        listed = value
    else:
        raise ValueError(f"has to be a text or a list of ids, or a list of either, and not empty; got {show(value)}")
    if len(listed) > MOST_PROMPTS:
        raise ValueError(f"has {len(listed):,} prompts, and takes at most {MOST_PROMPTS:,}")
    for each in listed:
        if wrong := [token for token in each if isinstance(token, int) and not 0 <= token < model.vocabulary]:
            raise ValueError(f"has {wrong[0]}, which is no id of the {model.vocabulary:,} tokens")
    return listed


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _ids(model: ServedModel, prompt: str | list[int], name: str) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    if not prompt:
        raise ApiError(f"{name} is empty; give some text to continue, or the id of a token", field="prompt")
    try:
        return text_ids(model.loaded, prompt)
    except MtError as error:
        raise ApiError(f"{name}: {error}", field=name.partition("[")[0]) from error


def _shown(model: ServedModel, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else model.loaded.tokenizer.decode(prompt)


class TextForm(Form):
    """Writes the objects of a completion."""

    whole_name = chunk_name = "text_completion"
    prefix = "cmpl"

    def prompt_chunk(self, text: Text, prompt_scores: Sequence[TokenScore] | None) -> dict[str, Any] | None:
        """See ``Form``."""
        if text.prompt is None:
            return None
        finish = None if text.continues else "length"
        return _choice(text, text.prompt, _scores(text, prompt_scores, ()), finish)

    def chunk(self, text: Text, piece: Piece) -> dict[str, Any]:
        """See ``Form``."""
        return _choice(text, piece.text, _scores(text, None, piece.scores), piece.finish)

    def choice(self, text: Text, pieces: Sequence[Piece], prompt_scores: Sequence[TokenScore] | None) -> dict[str, Any]:
        """See ``Form``."""
        said = (text.prompt or "") + "".join(piece.text for piece in pieces)
        scores = [score for piece in pieces for score in piece.scores]
        return _choice(text, said, _scores(text, prompt_scores, scores), pieces[-1].finish if pieces else "length")


def _scores(
    text: Text, prompt_scores: Sequence[TokenScore] | None, scores: Sequence[TokenScore]
) -> dict[str, Any] | None:
    if not text.answer.scored:
        return None
    texts, found = text.answer.texts, empty_scores()
    if prompt_scores is not None:
        texts.begin(0)
        add_scores(found, texts, [text.request.ids[0], *prompt_scores])
        texts.begin(len(text.prompt or ""), text.request.after)
    add_scores(found, texts, scores)
    return found


def _choice(text: Text, said: str, scores: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": text.index, "text": said, "logprobs": scores, "finish_reason": finish}
