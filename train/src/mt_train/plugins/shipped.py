"""Names that distributions of this project offer, so that a name whose distribution is not installed is met with its ``pip`` line.

``shipped.json`` has them by kind and distribution; ``python tests/reference/write_pages.py`` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from mt_core.errors import UnknownComponentError
from mt_core.plugins.host import Offer, PluginHost
from mt_core.plugins.metadata import canonicalize, words

FILE = "shipped.json"


def find_offer(host: PluginHost, kind: str, name: str) -> Offer:
    """Return the component of a kind and name. Raises ``UnknownComponentError``, with the line that installs it if it is one of ours."""
    try:
        return host.get(kind, name)
    except UnknownComponentError as error:
        distribution = distribution_of(kind, name)
        if distribution is None or any(plugin.info.distribution == distribution for plugin in host.plugins):
            raise
        raise UnknownComponentError(
            f"{words(kind)} {name!r} comes with {distribution}, which is not installed here: pip install {distribution}"
        ) from error


def distribution_of(kind: str, name: str) -> str | None:
    """Return the distribution of this project that offers a component; ``None`` for a name that none offers."""
    short = canonicalize(name)
    return next((distribution for distribution, names in _table().get(kind, {}).items() if short in names), None)


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    text = files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    table: dict[str, dict[str, list[str]]] = json.loads(text)
    return table
