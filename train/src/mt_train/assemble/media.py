"""Media of a run: the template that has places for them, what reads them, and the values of their encoders."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os.path import expanduser
from pathlib import Path

from torch import Tensor

from mt_core import groups
from mt_core.data.text_ids import continuation_encoder, text_encoder
from mt_core.errors import UsageError, WeightsError
from mt_core.protocols import Template, Tokenizer
from mt_train.assemble.identity import source_files
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_encoder import RunEncoder
from mt_train.data.media.reader import MediaReader
from mt_train.data.media.rules import MOST_BYTES, MediaRules
from mt_train.data.media.writer import MediaSource, MediaTemplate, MediaWriter
from mt_train.data.templates import build_template
from mt_train.data.templates.days import ROW_DAY
from mt_train.data.templates.plain import mark_encoders

MEDIA = f"{groups.MEDIA}."
"""Begins the names of all parameters that encode media."""


def media_weights(parts: Parts, names: Collection[str]) -> dict[str, Callable[[], Tensor]]:
    """Return the values of encoders that the run names weights for, by the names (of ``names``) that they have in the model.

    Raises ``WeightsError`` where a folder lacks some of an encoder, or of a projector that it has.
    """
    found: dict[str, Callable[[], Tensor]] = {}
    for each in parts.encoders:
        own = {f"{MEDIA}{each.name}.{name}": load for name, load in each.tensors().items()}
        begins = tuple(f"{MEDIA}{each.name}.{part}." for part in each.read_parts)
        allowed = parts.config.model.source.allow_missing
        if missing := [
            name for name in names if name.startswith(begins) and name not in own and not _fits(name, allowed)
        ]:
            raise WeightsError(
                f"{each.path} lacks {', '.join(sorted(missing)[:4])} ({len(missing)} tensors of encoders.{each.name}); fetch it again, or"
                " draw them from the seed (--model.allow-missing PATTERN)"
            )
        found |= {name: load for name, load in own.items() if name in names}
    return found


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def run_template(parts: Parts, tokenizer: Tokenizer) -> Template:
    """Return the template of a run, with places for media where it has encoders. It has the day of rows (``ROW_DAY``)."""
    template = build_template(tokenizer, parts.config.data, media=bool(parts.encoders), day=ROW_DAY)
    return with_media(parts, template, tokenizer)


def with_media(parts: Parts, template: Template, tokenizer: Tokenizer) -> Template:
    """Return the template of a run, with places for media where the run has encoders."""
    if not parts.encoders:
        return template
    encode = mark_encoders(text_encoder(tokenizer), continuation_encoder(tokenizer))[0]
    sources = {kind: _source(each, tokenizer) for each in parts.encoders for kind in each.component.reads}
    return MediaTemplate(template, MediaWriter(sources), encode)


def media_rules(parts: Parts) -> MediaRules | None:
    """Return where parts of rows may lie, and which kinds encoders read; ``None`` where the run has no encoder.

    Files lie below ``data.media_root``, or else in the folders of the rows' own files.
    """
    rules = prompt_rules(parts)
    if not parts.encoders:
        return None
    root = parts.config.data.media_root
    folders = [path.parent for paths in (source_files(parts) or {}).values() for path in paths or ()]
    roots = [Path(expanduser(root))] if root else list(dict.fromkeys(folders)) or [Path.cwd()]
    limits = [
        getattr(each.options, "max_bytes", 0) for each in parts.encoders
    ]  # an encoder's own is checked by its processor, too
    return replace(rules, roots=tuple(each.absolute() for each in roots), max_bytes=max(MOST_BYTES, *limits))


def media_kinds(parts: Parts) -> frozenset[str]:
    """Return the kinds of media that the encoders of a run read."""
    return frozenset(kind for each in parts.encoders for kind in each.component.reads)


def prompt_rules(parts: Parts) -> MediaRules:
    """Return which kinds encoders read, and what is found in texts; no file may be read by them.

    Raises ``UsageError`` for a pattern of another kind.
    """
    kinds, patterns = media_kinds(parts), parts.config.data.media_patterns
    if unread := sorted(patterns.keys() - kinds):
        raise UsageError(
            f"data.media_patterns finds {', '.join(unread)}, and the encoders of this run read {', '.join(sorted(kinds)) or 'nothing'};"
            " name one that reads it (--encoders), or leave the pattern out"
        )
    return MediaRules(kinds=kinds, roots=(), patterns={kind: re.compile(pattern) for kind, pattern in patterns.items()})


def media_reader(parts: Parts) -> MediaReader | None:
    """Return what gives batches the inputs of encoders; ``None`` where the run has none."""
    processors = {each.name: each.component.processor(each.options) for each in parts.encoders}
    return MediaReader(processors) if processors else None


def _source(encoder: RunEncoder, tokenizer: Tokenizer) -> MediaSource:
    options = encoder.options
    fill = tokenizer.pad_id or 0
    if options.token is not None:
        fill = _single(encoder.name, "token", options.token, tokenizer)
    return MediaSource(
        name=encoder.name,
        processor=encoder.component.processor(options),
        tokens=encoder.tokens,
        fill=fill,
        begin=tuple(tokenizer.encode(options.begin)) if options.begin else (),
        end=tuple(tokenizer.encode(options.end)) if options.end else (),
        limit=options.limit,
    )


def _single(name: str, key: str, text: str, tokenizer: Tokenizer) -> int:
    """Return the one id of a text. Raises ``UsageError`` for a text of more."""
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise UsageError(
            f"encoders.{name}.{key}={text!r} is {len(ids)} tokens of this tokenizer; name a text that is one, or leave it out"
        )
    return ids[0]
