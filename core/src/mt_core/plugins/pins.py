"""Names and versions of distributions out of files that anybody may have written, as lines for pip.

A name is what PEP 508 takes and a version what PEP 440 takes, in ASCII and nothing around them: a line that is pasted into a
shell or given to ``pip install -r`` has room for an option, an address or a second command otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

FOLDER, FILE = "a folder", "a file"
"""Origins of this machine, which are nowhere else."""

UNKNOWN = "of unknown version"
"""The version of a distribution whose metadata names none."""

LABELLED = {"torch": "https://download.pytorch.org/whl/"}
"""Distribution that has builds with a label (``torch==2.9.0+cpu``), which PyPI has not → where those are."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._~:/?#@!%+,=-]+")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LABEL = re.compile(r"cpu|xpu|cu[0-9]{2,3}|rocm[0-9]{1,2}(?:\.[0-9]{1,2}){1,2}")
"""Labels that are folders of that index: https://pytorch.org/get-started/previous-versions."""
_LONGEST = 100
"""Characters of a name or a version; the longest name on PyPI has 80."""


def is_name(text: str) -> bool:
    """Return whether a text names a distribution (https://peps.python.org/pep-0508/#names)."""
    return len(text) <= _LONGEST and _NAME.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Return whether a text is a version (https://peps.python.org/pep-0440/) without white space, or ``UNKNOWN``."""
    if text == UNKNOWN:
        return True
    if len(text) > _LONGEST or not text.isascii() or text != text.strip():
        return False
    from packaging.version import Version  # not where plugins are only listed

    try:
        Version(text)
    except ValueError:  # InvalidVersion is one, and so is a number that is too long to read
        return False
    return True


def unfit_reason(versions: Mapping[str, str]) -> str | None:
    """The first name or version that pip must not be given, as Python writes it; ``None`` where there is none."""
    for name, version in versions.items():
        if not is_name(name) or not is_version(version):
            return f"{name!r}: {version!r}"[: 3 * _LONGEST]
    return None


def unfit_origin(origins: Mapping[str, str]) -> str | None:
    """The first text that is no address, as Python writes it; ``None`` where there is none."""
    odd = (f"{name!r}: {origin!r}" for name, origin in origins.items() if not _is_origin(origin))
    return next((text[: 3 * _LONGEST] for text in odd), None)


def _is_origin(text: str) -> bool:
    return text in (FOLDER, FILE) or (len(text) <= 3 * _LONGEST and _ADDRESS.fullmatch(text) is not None)


def pins(versions: Mapping[str, str]) -> list[str]:
    """``name==version`` of each; what has no known version cannot be pinned and has none (``unpinned_names``)."""
    return [f"{name}=={version}" for name, version in versions.items() if version != UNKNOWN]


def unpinned_names(versions: Mapping[str, str]) -> list[str]:
    """The names without a known version."""
    return [name for name, version in versions.items() if version == UNKNOWN]


def indexes(versions: Mapping[str, str]) -> list[str]:
    """Options of pip for builds that are on no index but their own; none for a label that is no folder of that index."""
    labels = {name: version.partition("+")[2] for name, version in versions.items() if name in LABELLED}
    return [f"--extra-index-url {LABELLED[name]}{label}" for name, label in labels.items() if _LABEL.fullmatch(label)]
