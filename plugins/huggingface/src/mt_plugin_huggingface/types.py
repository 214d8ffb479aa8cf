"""The model types of transformers that this family trains, each as the probe has found it, and those that it refuses.

``types.json`` is written by ``tests/huggingface/write_types.py``, which builds a small model of each type and looks; it is all that is
known of a type before transformers is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from mt_core import did_you_mean


@dataclass(frozen=True, kw_only=True)
class ModelType:
    """One model type. Paths are those of modules in its language model.

    ``names`` are keys of ``config.json`` by ours, of numbers that the type has; ``defaults`` what counts where a key is left out.
    ``positions`` is the module of learned positions, a layer of its own, as is ``before_head``, a module between the norm and the head;
    ``plain_head`` says that logits are the head's matrix times the hidden states and nothing else. ``own_attention`` says that attention
    is the type's own, with a mask of its own; ``tuple_size`` is the length of the tuple that a block returns, 0 where that is hidden
    states alone. ``scales_ids`` says that the model does something to embedded tokens only where it is given their ids,
    ``by_token`` that its blocks go on from a state with one token at a time; ``read_weights`` are the last names of linear layers whose
    weights its code reads without calling them; ``module_states`` are the attributes of a block, by path, in which its modules keep a
    state themselves. ``rotary_by_length`` says that its rotary positions may hang on the length of a text. ``scales_in_place`` says that
    the model changes the embedded tokens that it is given. ``counts_rows`` is the key of ``config.json`` for the tokens from which on a
    token's place in its row counts, whatever its position. ``padding`` says what ``pad_token_id`` does beside naming a token: transformers
    sets the token's "embedding" to zero when it opens a folder, or that row of its table of "positions". ``needed_ids`` are the special
    ids that its config refuses to lack. ``limits`` are what the family declares (``mt_core.Component.limits``).
    """

    name: str
    architecture: str
    names: Mapping[str, str]
    defaults: Mapping[str, int]
    embed: str
    blocks: str
    norm: str
    head: str
    plain_head: bool
    positions: str | None = None
    before_head: str | None = None
    own_attention: bool = False
    tuple_size: int = 0
    scales_ids: bool = False
    by_token: bool = False
    module_states: Sequence[str] = ()
    read_weights: Sequence[str] = ()
    rotary_by_length: bool = False
    scales_in_place: bool = False
    counts_rows: str | None = None
    padding: str | None = None
    needed_ids: Sequence[str] = ()
    limits: Mapping[str, str] = field(default_factory=dict)

    def value(self, content: Mapping[str, Any], name: str) -> Any:
        """Return the number that a ``config.json`` gives for one of ``names``, under the type's own key or the usual one."""
        for key in (self.names.get(name), USUAL[name]):
            if key is not None and (found := content.get(key)) is not None:
                return len(found) if isinstance(found, list) else found  # of the kinds of its layers
        return self.defaults[name]


USUAL: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
}
"""Our names → the keys that most types have."""


@cache
def known_types() -> Mapping[str, ModelType]:
    """Name → what is known of each type that is trained here."""
    return {name: ModelType(name=name, **entry) for name, entry in _table()["types"].items()}


@cache
def refused_types() -> Mapping[str, str]:
    """Name → why a type is not trained here, for types that were looked at."""
    return dict(_table()["refused"])


def why_not(name: object, *, written_by: object = None) -> str | None:
    """Say why a model type is not trained here; ``None`` where it is. ``written_by`` is the version of transformers that wrote it."""
    if not isinstance(name, str):
        return f"config.json has no model_type that is a word, but {name!r}; fetch it again"
    if name in known_types():
        return None
    if name in refused_types():
        return f"the model type {name!r} is not trained here: {refused_types()[name]}"
    hint = did_you_mean(str(name), list(known_types()))
    if _version(written_by) > _version(_table()["transformers"]):
        hint = (
            f"A newer transformers wrote it ({written_by}); types are known as of {_table()['transformers']}: upgrade"
            " mt-plugin-huggingface. "
        )
    return f"the model type {name!r} is unknown here. {hint}Trained are {', '.join(sorted(known_types()))}"


def _version(text: object) -> tuple[int, ...]:
    """The first two numbers of a version; none where it is no version."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", text) if isinstance(text, str) else None
    return tuple(map(int, found.groups())) if found else ()


def _table() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files(__package__).joinpath("types.json").read_text("utf-8"))
    return content
