"""The text of ``mt-plugins``: tables in a terminal, aligned columns in a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from mt_core.cli.plugins_report import Report
from mt_core.plugins.metadata import words

GAP = "   "
"""Between two columns of a table that is drawn."""

MIN_WRAPPED = 24
"""Columns: where less than this is left for the last cell, a line is left long."""

FACTS = (
    ("source", "source"),
    ("layouts", "layouts"),
    ("devices", "devices"),
    ("requires", "requires"),
    ("conflicts", "conflicts with"),
    ("replaces", "stands in for"),
    ("family_of", "more sizes of the family of"),
    ("run_defaults", "sets"),
    ("notice", "notice"),
    ("architectures", "architectures"),
    ("formats", "weights formats"),
    ("form", "form"),
    ("batching", "batching"),
    ("truncation", "truncation"),
    ("batch_coupled", "batch coupled"),
    ("mergeable", "mergeable"),
    ("rewrites_base", "rewrites base"),
    ("exact_at_init", "exact at init"),
    ("on_quantized", "on a quantized base"),
)
"""Field of a component → how the page calls it; empty ones are left out."""


def screen_width() -> int:
    """Columns of the terminal; 0 (never wrap) where output goes to a file or a pipe."""
    if not sys.stdout.isatty():
        return 0
    from shutil import get_terminal_size  # with bz2 and lzma

    return get_terminal_size().columns


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = 0) -> Iterator[str]:
    """Lines of left-aligned columns; in a terminal, ``width`` columns wide, with a rule, and wrapped in the last column."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head) - 1)]
    before = sum(size + len(GAP) for size in widths)
    drawn = width - before >= MIN_WRAPPED
    for number, row in enumerate([head, *rows]):
        cells = (cell.ljust(size) + (GAP if drawn else "  ") for cell, size in zip(row, widths, strict=False))
        yield from _hang("".join(cells), row[-1], width if drawn else 0)
        if drawn and number == 0:
            yield "─" * min(width, before + max(len(each[-1]) for each in [head, *rows]))


def _hang(start: str, text: str, width: int) -> list[str]:
    room, parts = width - len(start), [text]
    if room >= MIN_WRAPPED:
        import textwrap  # a list in a pipe or a file does without it

        parts = textwrap.wrap(text, room, break_on_hyphens=False)
    return [((start if index == 0 else " " * len(start)) + part).rstrip() for index, part in enumerate(parts or [""])]


def installed_lines(plugins: Sequence[Report], width: int = 0) -> Iterator[str]:
    """``list``."""
    columns = ("name", "distribution", "version", "status", "location")
    return table(columns, [[plugin[column] for column in columns] for plugin in plugins], width)


def component_lines(plugins: Sequence[Report], width: int = 0) -> Iterator[str]:
    """``list --components``: the table, then whatever offers nothing and why."""
    rows = [
        [words(item["kind"]), item["name"], plugin["distribution"], plugin["status"], item["summary"]]
        for plugin in plugins
        for item in plugin["components"]
    ]
    yield from table(("kind", "name", "plugin", "status", "summary"), sorted(rows), width)
    absent = [plugin for plugin in plugins if plugin["status"] != "loaded"]
    if absent:
        yield ""
    for plugin in absent:
        yield from _hang(f"{plugin['status']:<7}  ", _cause(plugin), width)


def _cause(plugin: Report) -> str:
    return title(plugin) + (f": {plugin['error']}" if plugin["error"] else "")


def title(plugin: Report) -> str:
    """The plugin as messages name it."""
    return f"{plugin['name']} ({plugin['distribution']} {plugin['version']})"


# ---------------------------------------------------------------------------------------------------------------- info


def plugin_lines(plugin: Report, width: int = 0) -> Iterator[str]:
    """Everything about a plugin; its ``components`` are described ones."""
    yield from _hang("plugin ", f"{title(plugin)}: {plugin['status']}", width)
    for key in ("error", "module", "location"):
        if plugin[key]:
            yield from _hang(f"  {key}: ", str(plugin[key]), width)
    for kind in plugin["kinds"]:
        chosen = f"--{kind['key'].replace('_', '-')}" if kind["key"] else "named by other components"
        yield from _hang("  kind: ", f"{words(kind['name'])} ({kind['hook']}, {chosen}): {kind['summary']}", width)
    for component in plugin["components"]:
        yield ""
        yield from component_page(component, width)


def component_page(component: Report, width: int = 0) -> Iterator[str]:
    """Return what a component declares, its sizes and its options."""
    yield from _hang("", f"{words(component['kind'])} {component['qualified']}: {component['summary']}", width)
    for key, name in FACTS:
        if component.get(key) not in (None, "", [], {}):
            yield from _hang(f"  {name}: ", yaml_text(component[key]), width)
    if component.get("variants"):
        yield "  sizes:"
        yield from _sizes(component, width)
    if component["options"]:
        yield "  options:"
        yield from _options(component["options"], width)


def _sizes(family: Report, width: int) -> Iterator[str]:
    rows = [
        [f"    {size}{' (default)' if size == family.get('default_variant') else ''}", yaml_text(values)]
        for size, values in family["variants"].items()
    ]
    return table(("    size", "values"), rows, width)


def _options(items: Sequence[Report], width: int) -> Iterator[str]:
    rows = [[f"    --{item['key']}", kind_of_value(item), value(item), item["description"]] for item in items]
    return table(("    option", "type", "value", "meaning"), rows, width)


def kind_of_value(item: Report) -> str:
    """The type of an option, and its bounds."""
    return f"{item['type']} ({item['bounds']})" if item["bounds"] else str(item["type"])


def value(item: Report) -> str:
    """Return what an option is where nothing is said."""
    return "required" if item["required"] else f"default {yaml_text(item['default'])}"


def yaml_text(value: Any) -> str:
    """A value as YAML would have it, on one line."""
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        pairs = (
            f"{key} {{{yaml_text(item)}}}" if isinstance(item, dict) else f"{key} {yaml_text(item)}"
            for key, item in value.items()
        )
        return ", ".join(pairs)
    if isinstance(value, list):
        return ", ".join(yaml_text(item) for item in value)
    return repr(value) if isinstance(value, str) and not value.strip() else str(value)


# --------------------------------------------------------------------------------------------------------------- check


def check_lines(plugins: Sequence[Report], width: int = 0) -> Iterator[str]:
    """One line a plugin, its problems below it."""
    if not plugins:
        yield "no plugin is installed"
    for plugin in plugins:
        state = "ok" if plugin["status"] == "loaded" and not plugin["problems"] else plugin["status"]
        yield f"{state:<7}  {title(plugin)}{_count(plugin)}"
        for problem in plugin["problems"]:
            yield from _hang("         problem: ", problem, width)


def _count(plugin: Report) -> str:
    if plugin["status"] != "loaded":
        return ""
    count = len(plugin["components"])
    kinds = f", brings {', '.join(words(kind['name']) for kind in plugin['kinds'])}" if plugin["kinds"] else ""
    return f": {count} component{'' if count == 1 else 's'}{kinds}, loaded in {plugin['load_ms']:.0f} ms"
