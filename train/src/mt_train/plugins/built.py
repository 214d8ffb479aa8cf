"""Objects that components build, compared with the protocol that their kind names: a method that lacks is told before it is called."""

from __future__ import annotations

from importlib import import_module

from mt_core.errors import ComponentError
from mt_core.kinds import CORE_KINDS
from mt_core.plugins.host import Offer
from mt_core.protocols import Dataset, Stream


def check_built(built: object, offer: Offer) -> None:
    """Raise ``ComponentError`` where what a component built lacks members of the protocol of its kind (``Kind.returns``).

    ``None`` is left alone: a split that a dataset has not, a quantizer that stores nothing. A dataset may be a ``Stream`` instead.
    """
    kind = CORE_KINDS.get(offer.kind)
    if built is None or kind is None:
        return
    module, _, name = kind.returns.partition(":")
    wanted = getattr(import_module(module), name)
    if wanted is Dataset and isinstance(built, Stream):
        return
    builds = f"{kind.words} {offer.component.name!r} of {offer.plugin.label} builds a {type(built).__name__}"
    if lacking := [each for each in _members(wanted) if not hasattr(built, each)]:
        them = "it" if len(lacking) == 1 else "them"
        raise ComponentError(f"{builds} without {', '.join(lacking)}; define {them} as {module}.{name} has {them}")
    if kind.name == "train_model":
        _check_model(built, wanted, builds)


def _check_model(built: object, wanted: type, builds: str) -> None:
    """Raise ``ComponentError`` for what is no model, or one that does not say what it is made of."""
    if not isinstance(built, wanted):
        raise ComponentError(f"{builds}, which is no mt_core.nn.TrainModel; derive its class from that")
    if not hasattr(built, "config"):
        raise ComponentError(f"{builds} without config; set self.config = config in its __init__")
    try:
        built.layers()  # type: ignore[attr-defined]
    except AttributeError as error:
        raise ComponentError(
            f"{builds} whose layers() ends in: {error}. Define layers(), or name embedding, blocks, final norm and head"
            " model.embed_tokens, model.layers, model.norm and lm_head"
        ) from error


def _members(wanted: object) -> list[str]:
    """Return names of methods and attributes of a protocol; none of anything else, which Python itself checks by its class."""
    if not isinstance(wanted, type) or not getattr(wanted, "_is_protocol", False):
        return []
    own = [name for base in wanted.__mro__ for name in (*vars(base), *vars(base).get("__annotations__", ()))]
    return sorted({name for name in own if not name.startswith("_")} | ({"__len__"} & vars(wanted).keys()))
