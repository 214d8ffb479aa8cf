"""Secrets never reach a log, a console, a page or a saved config. This is the one place that knows what a secret looks like.

Text is redacted before it is escaped (as JSON, as HTML): afterwards a value may be written otherwise than it is known here. What is
left as it is: rows, and what a model writes about them (``samples.jsonl``, predictions), since they are data.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

HIDDEN = "•••"
_NAMES = re.compile(
    r"(^|_)(api_?keys?|access_?keys?|account_?keys?|private_?keys?|tokens?|secrets?|passwords?|passwd|passphrase|credentials?"
    r"|connection_?strings?)(_|$)"
)
_SPECIAL_TOKENS = re.compile(
    r"(^|_)((bos|eos|pad|unk|sep|cls|mask|stop|end|begin|start|image|audio)_tokens?|add_(special_)?tokens)$"
)
"""Options of tokenizers: text that marks something."""
_PLACES = re.compile(r"_(path|file|dir|folder|name)$")
"""Keys that say where a secret is, or what it is called (``HF_TOKEN_PATH``)."""
_PERHAPS = re.compile(r"(^|_)(keys?|pat|pwd|auth|authorization|bearer|cookie|sas|signature|sig)$")
"""Names of secrets that are names of columns, too: the value decides."""
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[^\s/]{12,}")
_TOKENS = (
    ("hf_ api_org_", r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),  # Hugging Face
    ("ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{30,}"),  # GitHub
    ("github_pat_", r"github_pat_[A-Za-z0-9_]{20,}"),
    ("glpat- gloas- gldt- glrt", r"gl(?:pat|oas|dt|rt|rtr)-[A-Za-z0-9_.-]{16,}"),  # GitLab
    ("glcbt- glptt- glft- glimt- glagent- glsoat-", r"gl(?:cbt|ptt|ft|imt|agent|soat)-[A-Za-z0-9_.-]{16,}"),
    ("xox xapp-", r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"),  # Slack
    ("sk-", r"sk-[A-Za-z0-9_-]{20,}"),  # OpenAI and others
    ("_live_ _test_", r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"),  # Stripe
    (
        "gsk_ r8_ nvapi- xai-",
        r"(?:gsk|r8)_[A-Za-z0-9]{30,}|(?:nvapi|xai)-[A-Za-z0-9_-]{30,}",
    ),  # Groq, Replicate, NVIDIA, xAI
    ("AKIA ASIA", r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9])"),  # AWS
    ("AIza ya29. GOCSPX-", r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"),  # Google
    ("npm_ pypi-", r"npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}"),  # npm, PyPI
    ("dop_v1_ dapi", r"dop_v1_[a-f0-9]{64}|dapi[a-f0-9]{32}"),  # DigitalOcean, Databricks
    ("SG.", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),  # SendGrid
    ("eyJ", r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),  # JSON Web Token (RFC 7519)
)
"""Issuer's tokens: words, one of which is in each of them, and their shape."""
_HINTS = ("PRIVATE KEY", "://", "=", "uthorization", "UTHORIZATION", *" ".join(words for words, _ in _TOKENS).split())
"""Every shape has one of these in it: most texts have none, and need not be looked through letter by letter."""
_SHORTEST = 8
"""Shorter values of the environment are no secrets, and hiding them would garble ordinary text."""


def redact(text: str) -> str:
    """Return the text with secrets replaced: those of the environment, and text that has the form of a well-known key."""
    for value in _secrets_of(os.environ):
        text = text.replace(value, HIDDEN)
    return _shapes().sub(_mask, text) if any(hint in text for hint in _HINTS) else text


@cache
def _shapes() -> re.Pattern[str]:
    """Return what finds secrets by their shape; compiling it takes longer than most commands have text to look through."""
    return re.compile(
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)"
        rf"|(?<![A-Za-z0-9])(?:{'|'.join(shape for _, shape in _TOKENS)})"
        r"|(?<=://)[^/\s:@\"'<>]*:[^/\s\"'<>]+(?=@)"  # user:password@ in an address
        r"|(?<=https://)[^/\s@\"'<>?#]+(?=@)|(?<=http://)[^/\s@\"'<>?#]+(?=@)"  # TOKEN@
        r"|(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{20,}"
        r"|(?P<kept>[?&;](?i:[\w.%-]*(?:token|secret|passw(?:or)?d|signature|credential|api[_-]?key|access[_-]?key(?:[_-]?id)?|account[_-]?key)"
        r"|sig|sas|key|auth|pwd|pat)=)[^&\s#\"'<>]*[^&\s#\"'<>:.,;)\]]"
        r"|(?P<head>(?i:\b(?:authorization|proxy-authorization)[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+))[A-Za-z0-9+/=._~-]{8,}",
        re.DOTALL,
    )


def _mask(match: re.Match[str]) -> str:
    return (match["kept"] or match["head"] or "") + HIDDEN


def redact_values(value: Any) -> Any:
    """Return the same structure with every text in it redacted; for what is written as JSON."""
    if isinstance(value, Mapping):
        return {redact_values(name): redact_values(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_values(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def _secrets_of(environment: Mapping[str, str]) -> list[str]:
    named = {name: environment[name] for name in environment if _secret_word(name)}
    found = {value for name, value in named.items() if len(value) >= _SHORTEST and _is_set_secret(name, value)}
    spelled = {spelling for value in found for spelling in _spellings(value)}
    return sorted(spelled, key=len, reverse=True)  # the longest first: one may contain another


@cache
def _spellings(value: str) -> tuple[str, ...]:
    """Return how a message may write it: as it is, between quotes of Python and JSON, in an address."""
    return (
        value,
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        quote(value, safe=""),
    )


def _is_set_secret(name: str, value: str) -> bool:
    """Return whether a variable holds one: what is called a key there is seldom the name of a column, but may be a path (``SSH_KEY``)."""
    unsure = _secret_word(name) == _UNSURE and not value.isdecimal() and re.fullmatch(r"[^\s/]+", value) is not None
    return unsure or is_secret(name, 0 if value.isdecimal() else value)  # MAX_TOKENS=100000000 is a count


def is_secret(key: str, value: Any) -> bool:
    """Return whether a value of this name is better not shown. Counts and ids of tokens (``max_tokens: 512``) are no secrets."""
    word = _secret_word(key)
    if not word or value is None or isinstance(value, bool):
        return False
    if word == _UNSURE:
        return isinstance(value, str) and _RANDOM.fullmatch(value) is not None
    return not (word.startswith("token") and isinstance(value, int | float))


_UNSURE = "perhaps"


@cache
def _secret_word(key: str) -> str:
    """The word in a name that tells of a secret; cached, since every line of a log is looked through for all of them."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_")
    if _SPECIAL_TOKENS.search(name) or _PLACES.search(name):
        return ""
    match = _NAMES.search(name)
    return match[2] if match else _UNSURE if _PERHAPS.search(name) else ""
