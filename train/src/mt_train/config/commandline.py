"""The command line as a nested mapping: ``--model llama --model.n-layers 6`` → ``{model: {name: llama, n_layers: 6}}``.

Only reading happens here; pydantic validates. Numbers, lists and mappings are written as in YAML; all else is text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from mt_core.config.base import NOTHING
from mt_core.errors import UsageError, show_value
from mt_core.kinds import CORE_KINDS, Kinds
from mt_train.config.files import PlainLoader, yaml_problem
from mt_train.config.foreign_answers import answer_name
from mt_train.config.keys import underscore_keys
from mt_train.config.own_names import answer_path, refuse_misspelled
from mt_train.config.plain import check_plain
from mt_train.config.run import SECTIONS


@dataclass(frozen=True)
class CommandLine:
    """Flags of the command itself, and the keys of the run."""

    flags: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)


def parse(
    argv: Sequence[str],
    *,
    switches: Iterable[str],
    values: Iterable[str],
    repeated: Iterable[str] = (),
    kinds: Kinds = CORE_KINDS,
) -> CommandLine:
    """Parse ``argv``. ``switches`` take no value, ``values`` take one, ``repeated`` may be given several times.

    ``kinds`` say which keys name components. Raises ``UsageError`` for a stray word, a missing value or a key that is given twice.
    """
    flags, keys = _split(argv, set(switches), set(values), set(repeated))
    line = CommandLine(flags)
    own, known = [*switches, *values, *repeated], [*kinds.slots, *kinds.lists, *SECTIONS]
    for key, text in keys:
        if "." not in key and key not in known and not answer_name(key):
            refuse_misspelled(key, own, known)
        _set_key(line.raw, key, text, kinds)
    return line


def _spell(key: str) -> str:
    return key.replace("_", "-")


def parse_flags(
    argv: Sequence[str], *, switches: Iterable[str], values: Iterable[str], repeated: Iterable[str] = ()
) -> dict[str, Any]:
    """Read the flags of the command itself alone, before it is known which kinds of components there are."""
    return _split(argv, set(switches), set(values), set(repeated))[0]


def _split(
    argv: Sequence[str], switches: set[str], values: set[str], repeated: set[str]
) -> tuple[dict[str, Any], list[tuple[str, str | None]]]:
    """Return the flags, and each other key with its text."""
    flags: dict[str, Any] = {}
    keys: list[tuple[str, str | None]] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise UsageError(
                f"unexpected argument {show_value(word)}; options are written --key value, for instance --model llama, and several"
                f" values with commas, without a space between them{answer_path(word)}"
            )
        key, given, text = word[2:].partition("=")
        key = key.replace("-", "_")
        if key in switches:
            if given:
                raise UsageError(f"--{key.replace('_', '-')} takes no value, got {show_value(text)}; write it alone")
            flags[key] = True
            continue
        if not given:
            text = words.pop(0) if words and not words[0].startswith("--") else None  # type: ignore[assignment]
        if key in values or key in repeated:
            _set_flag(flags, key, text, key in repeated)
        else:
            keys.append((key, text))
    return flags, keys


TEXTS = frozenset(
    {f"data.{key}" for key in ("system", "prefix", "postfix", "template")}
    | {f"tokenizer.{key}" for key in ("bos_token", "eos_token", "pad_token", "add_tokens", "add_special_tokens")}
)
"""Keys whose value is taken to the letter, also where it begins as a list or a mapping does: ``[PAD]``."""

_STRUCTURES = ("{", "[", '"', "'")
_NULLS = ("", "~", "null", "Null", "NULL")
_NULL_TAG = "tag:yaml.org,2002:null"
_NUMBER_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float"))


def parse_value(text: str, key: str) -> Any:
    """A value of the command line: ``4`` is a number, ``none`` and ``null`` are off, ``[a, b]`` and ``{a: b}`` are YAML.

    Anything else is the text that it is. YAML has other ideas of ``*.jsonl`` (an alias), ``Answer: `` (a mapping), ``Item #5``
    (a comment) and ``2026-01-01``, which a shell's quotes do not tell it.
    """
    if text == "none":
        return None
    if key in TEXTS and not text.startswith("{file:"):
        return text
    if text.startswith(_STRUCTURES):
        try:
            value = yaml.load(text, Loader=_PatternLoader)  # noqa: S506 - a subclass of the safe loader
        except yaml.YAMLError as error:
            raise UsageError(
                f"--{key}: cannot read {show_value(text)} as YAML ({yaml_problem(error)}); quote the value"
            ) from error
        except RecursionError as error:
            raise UsageError(f"--{key}: {show_value(text)} is too deeply nested; write it flatter") from error
        check_plain(value, f"--{key}")
        return value
    return _scalar(text, key)


def _scalar(text: str, key: str) -> Any:
    """Parse what YAML takes for a number, a truth value or null; return any other text as it is."""
    loader, word = PlainLoader(""), text.strip()
    tag = loader.seems(word)
    if tag == _NULL_TAG:
        return None if text in _NULLS else text
    if tag not in _NUMBER_TAGS:
        return text
    try:
        return loader.construct_object(yaml.ScalarNode(tag, word))
    except yaml.YAMLError as error:
        raise UsageError(f"--{key}: {yaml_problem(error)}") from error


class _PatternLoader(PlainLoader):
    """Loader that takes ``[*.q_proj]`` for a pattern: there is nothing on a command line that an alias could stand for."""

    def fetch_alias(self) -> None:
        self.fetch_plain()


_PatternLoader.add_constructor("tag:yaml.org,2002:yaml", lambda loader, node: node.value)  # a star by itself


def _set_flag(flags: dict[str, Any], key: str, text: str | None, repeated: bool) -> None:
    option = f"--{_spell(key)}"
    if text is None:
        raise UsageError(f"{option} needs a value")
    if repeated:
        flags.setdefault(key, []).extend(part for part in text.split(",") if part)
    elif key in flags:
        raise UsageError(f"{option} is given twice, as {show_value(flags[key])} and {show_value(text)}; keep one")
    else:
        flags[key] = text


def _set_key(raw: dict[str, Any], dotted: str, text: str | None, kinds: Kinds) -> None:
    option = f"--{_spell(dotted)}"
    path = dotted.split(".")
    if not all(path):
        raise UsageError(f"{option} has an empty part; keys are written --section.key")
    if path[0] in kinds.lists and len(path) == 1:
        _name_several(raw, path[0], text)
        return
    if len(path) == 1 and path[0] in kinds.slots:
        if text is None:
            raise UsageError(f"{option} needs a name; `mt-plugins list --components` shows the installed ones")
        path = [path[0], "name"]
        value: Any = text
    else:
        value = True if text is None else parse_value(text, dotted)
    if len(path) == 1 and path[0] in SECTIONS and not isinstance(value, dict):
        raise UsageError(f"{option} is a section, got {show_value(text)}; its keys are written {option}.KEY VALUE")
    node = raw
    for part in path[:-1]:
        child = node.setdefault(part, {})
        if isinstance(child, str) and path[0] not in SECTIONS:  # a word with options names the component that has them
            child = node[part] = {"name": child}
        if not isinstance(child, dict):
            raise UsageError(
                f"{option} reaches into {part!r}, which is already given as {show_value(child)}; keep one of them"
            )
        node = child
    given = node.get(path[-1])
    if isinstance(given, dict) and isinstance(value, str) and path[0] not in SECTIONS and "name" not in given:
        given["name"] = value  # the word comes behind its options
        return
    if path[-1] in node:
        raise UsageError(f"{option} is given twice, as {show_value(node[path[-1]])} and {show_value(value)}; keep one")
    node[path[-1]] = value


def _name_several(raw: dict[str, Any], key: str, text: str | None) -> None:
    """``--callbacks a,b``; ``none`` takes away those of the file."""
    if text == "none":
        raw[key] = None
        return
    named = raw.setdefault(key, {}) or {}
    names = [name for part in (text or "").split(",") if (name := _key(part))]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"--{key} names {twice[0].replace('_', '-')} twice; keep one")
    raw[key] = named | {name: named.get(name, {}) for name in names}


def _key(name: str) -> str:
    return name.strip().replace("-", "_")


EXCLUDES = {
    "train.steps": "epochs",
    "train.epochs": "steps",
    "eval.every_steps": "every_epochs",
    "eval.every_epochs": "every_steps",
    "checkpoint.every_steps": "every_epochs",
    "checkpoint.every_epochs": "every_steps",
}
"""Key → another one of its section that replaces it when it is given on top."""


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any], kinds: Kinds = CORE_KINDS) -> dict[str, Any]:
    """Merge two configs; ``upper`` wins, key by key. A component whose name changes is replaced whole, options included.

    Options that stand without a name are of whatever component is named on top, or follows from them (``model.weights``).
    """
    merged = _slots(lower, kinds)
    for key, value in _slots(upper, kinds).items():
        below = merged.get(key)
        if key in kinds.lists and isinstance(value, dict) and isinstance(below, dict):
            merged[key] = below | {name: _over(below.get(name), options) for name, options in value.items()}
        elif (
            not isinstance(value, dict)
            or not isinstance(below, dict)
            or (key in kinds.slots and "name" in value and value["name"] != below.get("name", value["name"]))
        ):
            merged[key] = value
        else:
            kept = {name: item for name, item in below.items() if value.get(EXCLUDES.get(f"{key}.{name}")) in NOTHING}
            merged[key] = _over(kept, value) if key in kinds.slots else {**kept, **value}
    return merged


def _over(below: Any, options: Any) -> Any:
    """Options on top of others, those of parts that keep their names, too; what is no mapping stays for ``resolve`` to refuse."""
    if not (isinstance(below, dict) and isinstance(options, dict)):
        return options
    return {**below, **{key: _part_over(below.get(key), value) for key, value in options.items()}}


def _part_over(below: Any, value: Any) -> Any:
    """A part of a component on top of what a file says of it: options of the same one, or another one."""
    under, over = ({"name": each} if isinstance(each, str) else each for each in (below, value))
    if not (isinstance(under, dict) and isinstance(over, dict)) or (under is not below and over is not value):
        return value
    return _over(under, over) if "name" in under and over.get("name", under["name"]) == under["name"] else value


def _slots(raw: Mapping[str, Any], kinds: Kinds) -> dict[str, Any]:
    return {key: _slot(key, value, kinds) for key, value in underscore_keys(raw, "the config").items()}


def _slot(key: str, value: Any, kinds: Kinds) -> Any:
    """A bare name stands for a slot without options, nothing for an empty section; several components become a mapping by name."""
    if key in kinds.lists:
        return _by_name(value)
    if key not in kinds.slots and key not in SECTIONS:
        return value
    if value is None:
        return {}
    if key in kinds.slots and isinstance(value, str):
        return {"name": value}
    return underscore_keys(value, key) if isinstance(value, Mapping) else value


def _by_name(value: Any) -> Any:
    """``[a, {name: b, option: 1}]`` → ``{a: {}, b: {option: 1}}``; what is no such list, or names one twice, stays for ``resolve``."""
    if isinstance(value, Mapping):
        return {
            name: {} if options is None else options for name, options in underscore_keys(value, "the config").items()
        }
    items = value if isinstance(value, list | tuple) else []
    entries = [{"name": item} if isinstance(item, str) else item for item in items]
    named = {_key(str(each["name"])): {**each} for each in entries if isinstance(each, Mapping) and "name" in each}
    if not items or len(named) != len(items):
        return value
    return {key: {name: item for name, item in each.items() if name != "name"} for key, each in named.items()}
