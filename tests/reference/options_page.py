"""docs/reference/options.md, from the typed configs: what ``--help`` and ``mt-plugins info`` show, for everything in this repository."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from mt_conformance.host import named_host
from mt_core.cli.plugins_report import Report, component_report, options
from mt_core.cli.plugins_text import kind_of_value, value, words
from mt_core.config.base import ModelConfig, MtConfig
from mt_core.kinds import CORE_KINDS, Kinds
from mt_core.plugins.host import Offer, PluginHost
from mt_core.plugins.metadata import GROUP
from mt_train.config.run import SECTIONS, AdapterOptions, ModelOptions

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "options.md"

HEAD = """# Options

<!-- Written by `python tests/reference/write_pages.py` from the typed configs; change those. -->

Every option of a run: those of the core by section, then those of each component of the plugins in this repository, by
kind. On a command line they are written as here (`-` and `_` are equal), in YAML nested by the dots:
`--train.micro-batch-size 4` is `train: {micro_batch_size: 4}`. `none` switches off what may be none.
`mt-train --model NAME --adapter NAME --help` shows those of one run, `mt-plugins info NAME` those of any plugin that is
installed. Where `--model.weights` is a folder with a tokenizer, that one is taken if none is named. The commands' own
options are in [commands](commands.md).
"""


def page() -> str:
    """The page as it should be."""
    parts = [HEAD, "## Sections of a run", *(_section(name, config) for name, config in SECTIONS.items())]
    host = first_party()
    for kind, key in host.kinds.keys_of_kinds.items():
        flag = f"--{key.replace('_', '-')}"
        parts.append(f"## {words(kind).capitalize()}\n\nChosen with `{flag} NAME`{_default(kind)}.")
        parts += _kind(kind, list(host.offers(kind)))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _default(kind: str) -> str:
    usual, found = CORE_KINDS.slots.get(kind), kinds()[kind]
    if found.required:
        return f", unless the folder of `--{found.key}.weights` says it"
    return f"; where none is named, `{usual}`" if usual else ""


def first_party() -> PluginHost:
    """The built-ins and the plugins of this repository, whatever else is installed."""
    modules = []
    for file in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        modules += tomllib.loads(file.read_text())["project"].get("entry-points", {}).get(GROUP, {}).values()
    host = named_host(*modules)
    assert not [plugin.error for plugin in host.plugins if plugin.error], "every plugin of the repository loads"
    return host


@cache
def kinds() -> Kinds:
    """The kinds of the core, and those that plugins of this repository bring."""
    return first_party().kinds


# ------------------------------------------------------------------------------------------------------------ sections


def _section(name: str, config: type[MtConfig]) -> str:
    return f"### {name}\n\n{_doc(config)}\n\n{table(list(options(name, config)))}"


def _doc(config: type[MtConfig]) -> str:
    return " ".join((config.__doc__ or "").split()).replace("``", "`")


def _kind(kind: str, offers: Sequence[Offer]) -> Iterator[str]:
    """What the core adds, what several components share, and each component with the rest."""
    if kind == "model":
        yield f"### Any model\n\n{_doc(ModelOptions)}\n\n{table(list(options(kind, ModelOptions)))}"
    if kind == "adapter":
        yield f"### Any adapter\n\n{_doc(AdapterOptions)}\n\n{table(list(options(kind, AdapterOptions)))}"
    shared = shared_bases(offers)
    for base in shared:
        above = [each for each in base.__mro__[1:] if each in shared]
        also = f" It has the options of {_links(kind, above)}, and:" if above else ""
        own = table(added_options(prefix_of(kind), base, above))
        yield f"### Shared by {words(kind)}s: {base.__name__}\n\n{_doc(base)}{also}\n\n{own}"
    for offer in sorted(offers, key=lambda each: each.component.name):
        yield _component(offer, shared)


def prefix_of(kind: str) -> str:
    """Of an option that several components share."""
    keys = {kind: key for key, kind in kinds().lists.items()}
    return f"{keys[kind]}.NAME" if kind in keys else kind


def shared_bases(offers: Sequence[Offer]) -> list[type[MtConfig]]:
    """Configs that at least three components of a kind take options from, the most general first."""
    found = Counter(base for offer in offers for base in offer.component.config.__mro__)
    for each in (MtConfig, ModelConfig):  # of all
        found.pop(each, None)
    several = [base for base, count in found.items() if count > 2 and issubclass(base, MtConfig) and base.model_fields]
    return sorted(several, key=lambda base: (len(base.__mro__), base.__name__))


def added_options(prefix: str, config: type[MtConfig], above: Sequence[type[MtConfig]]) -> list[Report]:
    """The options of a config that those it is made from, the nearest first, do not have in the same way."""
    known = {option["key"]: option for base in reversed(above) for option in options(prefix, base)}
    return [option for option in options(prefix, config) if known.get(option["key"]) != option]


# ---------------------------------------------------------------------------------------------------------- components


def _component(offer: Offer, shared: Sequence[type[MtConfig]]) -> str:
    report = component_report(offer, kinds())
    config = offer.component.config
    lines = [
        f"### {words(offer.kind)} {offer.component.name}",
        "",
        f"{sentence(report['summary'])} From `{offer.plugin.distribution}`{_source(report)}.",
    ]
    above = [base for base in config.__mro__ if base in shared]
    own = added_options(_prefix(report), config, above)
    if above:
        lines += ["", f"Options of {_links(offer.kind, above)}{', and:' if own else '.'}"]
    if own:
        lines += ["", table(own)]
    elif not above:
        lines += ["", "No options."]
    return "\n".join(lines)


def _prefix(report: Report) -> str:
    key = {kind: f"{name}.{report['name']}" for name, kind in kinds().lists.items()}.get(report["kind"], report["kind"])
    return str(key)


def _links(kind: str, bases: Sequence[type[MtConfig]]) -> str:
    """To those that no other one is made from, and so says."""
    nearest = [base for base in bases if not any(base in other.__mro__[1:] for other in bases)]
    shared_by = f"shared-by-{kind.replace('_', '-')}s"
    return " and ".join(f"[{base.__name__}](#{shared_by}-{base.__name__.lower()})" for base in nearest)


def sentence(text: str) -> str:
    """Return a summary as a sentence: with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _source(report: Mapping[str, str]) -> str:
    links = [f"[source]({address})" for address in report["source"].split(", ") if address]
    return f" ({', '.join(links)})" if links else ""


def table(items: Sequence[Report]) -> str:
    """Options as Markdown."""
    cells = ((kind_of_value(item), value(item).removeprefix("default "), item["description"]) for item in items)
    rows = [f"| `--{item['key']}` | {' | '.join(map(_cell, each))} |" for item, each in zip(items, cells, strict=True)]
    return "\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *rows])


def _cell(text: str) -> str:
    """Text that Markdown leaves as it is."""
    for sign in ("\\", "|", "*", "<"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
