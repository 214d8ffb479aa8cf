"""docs/reference/hooks.md, from the sources: they are read and not imported, so that it takes no torch and no time."""

from __future__ import annotations

import ast
import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src" / "mt_core"
PAGE = ROOT / "docs" / "reference" / "hooks.md"

HEAD = """# Hooks, components and protocols

<!-- Written by `python tests/reference/write_pages.py` from the docstrings; change those. -->

A plugin is a module that implements some of the hooks below, each marked with `mt_core.hookimpl`. A hook takes no arguments and
returns a list of components. A run chooses a component by its name; the component has options and a `build` function. The object that
`build` returns implements a protocol; it need not inherit from a base class. The pages under [write](../write/model.md) describe one
kind each.
"""
PROSE = {
    "Configs": "Options are pydantic models. A plugin subclasses one of these, or a config of the [option"
    " reference](options.md) that several components share.",
    "Components": "Hooks return these. All are frozen dataclasses with keyword-only fields. Importing them imports no torch.",
    "Protocols": "`build` returns objects of these protocols. An object of any class fits if it has the methods; optional"
    " protocols are recognised by their methods.",
    "Rows, samples, records": "Data that components pass to each other.",
    "Callbacks and trackers": "The view of a run that a callback gets, and the requests that it may return. Every event"
    " comes on every rank; all ranks must return the same requests.",
    "Evaluations": "`mt_core.evaluation` and `mt_core.generation`: the interface of an evaluation to a model, and its results. Importing"
    " them imports no torch.",
    "Media": "`mt_core.media`: encoders and projectors as components, and the half of an encoder that reads files; the modules are in"
    " `mt_core.nn`. Importing `mt_core.media` imports no torch.",
    "Adapters": "`mt_core.Adapter` is the base of adapters; `mt_core.adapters` has building blocks for adapters of linear layers.",
    "Models and losses": "`mt_core.nn`: building blocks of models, adapters and objectives. Importing it imports torch.",
    "Errors": "A plugin raises these for errors that a user can fix, with one message that says what,"
    " got, allowed and fix. Any other exception is a bug, and is shown with the plugin's name.",
}
PARTS: dict[str, list[tuple[str, list[str]]]] = {
    "Configs": [("config/base.py", ["MtConfig", "ModelConfig", "Layout", "ZERO", "ANY"])],
    "Components": [("components.py", []), ("kinds.py", ["Kind"])],
    "Protocols": [
        (
            "protocols.py",
            [
                "Tokenizer",
                "ManyTexts",
                "ManyOffsets",
                "Template",
                "ManyConversations",
                "Dataset",
                "Repeating",
                "Stream",
            ],
        ),
        ("model_protocols.py", ["Objective", "HasTerms", "HasReference"]),
        ("../../../train/src/mt_train/engine/coupling.py", ["CouplesStep"]),
        ("../../../train/src/mt_train/assemble/first_loss.py", ["HasFirstLoss", "AddsNoise"]),
        ("../../../train/src/mt_train/data/outcomes.py", ["EncodesMany", "EncodesTogether"]),
        ("../../../train/src/mt_train/data/online.py", ["CollectsAnswers", "Prompt", "Policy"]),
        ("rows.py", ["HasFlat"]),
        ("model_protocols.py", ["Quantizer"]),
        ("protocols.py", ["GradientTransform", "Schedule", "TaskPrint"]),
    ],
    "Rows, samples, records": [
        ("rows.py", ["Row", "Sample", "FlatRows", "Message", "Encoded", "Rejected"]),
        ("protocols.py", ["StepRecord"]),
    ],
    "Callbacks and trackers": [("events.py", [])],
    "Evaluations": [
        ("evaluation.py", []),
        ("../../../train/src/mt_train/assemble/evaluations.py", ["ChecksRows", "HasStops"]),
        ("generation.py", ["GenerationConfig", "SamplingRules", "Generation"]),
    ],
    "Media": [
        ("media.py", []),
        ("rows.py", ["MediaPart", "MediaItem", "MediaSpan"]),
        ("nn/media.py", ["Encoder", "Projector", "MediaBatch"]),
    ],
    "Adapters": [
        ("adapters/base.py", ["Adapter", "Probe"]),
        ("step_context.py", ["AdapterContext"]),
        ("adapters/linear.py", ["LinearAdapter", "Place"]),
        ("nn/adapted.py", ["AdaptedLinear", "StoredLinear"]),
    ],
    "Models and losses": [
        ("nn/model.py", ["TrainModel", "Layer", "LayerSpec"]),
        ("nn/context.py", ["BlockContext"]),
        ("nn/cache.py", ["KVCache"]),
        ("nn/batch.py", ["Batch", "LossSums"]),
        ("nn/objective.py", ["TokenObjective"]),
    ],
    "Errors": [("errors.py", ["Fault", "ConfigError"])],
}
"""Heading → modules, and which of their public names in which order; none is all of them."""

OUTSIDE = {"Protocol", "NamedTuple", "nn.Module", "BaseModel", "Exception", "FutureWarning"}
"""Bases that are not ours."""
CALLED = {"__len__"}
"""Methods of Python's own that a protocol asks for."""

Definition = ast.ClassDef | ast.Assign | ast.AnnAssign


def page() -> str:
    """The page as it should be."""
    parts = [HEAD, _hooks()]
    for title, sources in PARTS.items():
        parts.append(f"## {title}\n\n{PROSE[title]}\n")
        if title == "Errors":
            tree = (ast.get_docstring(_tree("errors.py")) or "").partition("\n\n")[2]
            parts.append(f"```text\n{tree}\n```\n")
        parts += [
            _entry(name, node, doc) for file, names in sources for name, node, doc in _public_definitions(file, names)
        ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


# --------------------------------------------------------------------------------------------------------------- hooks


NOT_CHOSEN = {"mt_kinds": "nothing: always there", "mt_doctor": "`mt-plugins doctor`"}
"""Hooks that offer no component."""


def _hooks() -> str:
    from mt_core.kinds import CORE_KINDS

    options = {kind: f"`--{slot.replace('_', '-')}`" for slot in CORE_KINDS.slots for kind in [slot]}
    options |= {kind: f"`--{key}`" for key, kind in CORE_KINDS.lists.items()}
    lines = ["## Hooks", "", "| hook | returns | chosen with | what it offers |", "|---|---|---|---|"]
    for node in _tree("hookspecs.py").body:
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, f"{node.name} says what it returns"
            returns = in_cell(_code(node.returns))
            kind = CORE_KINDS.hooks.get(node.name)
            chosen = options.get(kind.name, "the family's name") if kind is not None else NOT_CHOSEN[node.name]
            lines.append(f"| `{node.name}` | {returns} | {chosen} | {prose(ast.get_docstring(node) or '')} |")
    return "\n".join([*lines, *_hooks_of_kinds(), ""])


def _hooks_of_kinds() -> Iterator[str]:
    """Yield the hooks of kinds that distributions of this repository bring."""
    from kind_pages import FOUND

    for name, (distribution, _) in FOUND.bringers.items():
        kind = FOUND.kinds[name]
        chosen = f"`--{kind.key.replace('_', '-')}`" if kind.key else "options of other components"
        yield f"| `{kind.hook}` | `list[{kind.classes[0].__name__}]` | {chosen} | Added by `{distribution}`: {kind.summary}. |"


# -------------------------------------------------------------------------------------------------- classes and aliases


def _code(node: ast.AST) -> str:
    """As this repository writes it, with double quotes."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', ast.unparse(node))


def _tree(file: str) -> ast.Module:
    return ast.parse((CORE / file).read_text(encoding="utf-8"))


def _public_definitions(file: str, names: list[str]) -> Iterator[tuple[str, Definition, str]]:
    """Public classes and documented assignments of a module with their docstrings, as listed or in their order."""
    found: dict[str, tuple[Definition, str]] = {}
    body = _tree(file).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef):
            found[node.name] = node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign) and (doc := string(after)):
            found[targets(node)[0]] = node, doc
    for name in names or [each for each in found if not each.startswith("_")]:
        yield name, *found[name]


def in_cell(code: str) -> str:
    """Code in a table. In backticks GitHub wants a bar escaped, and python-markdown shows the backslash."""
    return f"<code>{html.escape(code, quote=False).replace('|', '&#124;')}</code>" if "|" in code else f"`{code}`"


def targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that are assigned."""
    return [_code(each) for each in (node.targets if isinstance(node, ast.Assign) else [node.target])]


def string(node: ast.AST | None) -> str:
    """The docstring behind an assignment."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def _entry(name: str, node: Definition, doc: str) -> str:
    lines = [f"### {name}", ""]
    if isinstance(node, ast.ClassDef):
        return "\n".join([*lines, *_class(node, doc), ""])
    if isinstance(node.value, ast.Dict) and node.value.keys:
        rows = [f"| `{ast.literal_eval(k)}` | {prose(ast.literal_eval(v))} |" for k, v in _items(node.value)]
        return "\n".join([*lines, prose(doc), "", "| name | |", "|---|---|", *rows, ""])
    assert node.value is not None, f"{name} has a value"
    return "\n".join([*lines, f"`{name} = {_code(node.value)}`", "", prose(doc), ""])


def _items(node: ast.Dict) -> Iterator[tuple[ast.expr, ast.expr]]:
    for key, value in zip(node.keys, node.values, strict=True):
        assert key is not None, "a mapping that is written out"
        yield key, value


def _class(node: ast.ClassDef, doc: str) -> Iterator[str]:
    bases = [base for base in map(_code, node.bases) if base not in OUTSIDE and not base.startswith("Generic")]
    if bases:
        yield f"It has all of {', '.join(f'`{base}`' for base in bases)}."
        yield ""
    yield prose(doc)
    yield ""
    yield from _fields(node)
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and (not each.name.startswith("_") or each.name in CALLED):
            yield _method(each)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Attributes with their types and defaults, as code."""
    rows: list[str] = []
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and not _code(each.target).startswith("_"):
            doc = string(after)
            rows += textwrap.wrap(
                " ".join(doc.replace("``", "").split()), 110, initial_indent="# ", subsequent_indent="# "
            )
            rows.append(_code(each))
    if rows:
        yield from ["```py", *rows, "```", ""]


def _method(node: ast.FunctionDef) -> str:
    is_property = "property" in [_code(each) for each in node.decorator_list]
    returns = _code(node.returns) if node.returns is not None else "None"
    head = f"`{node.name}`: `{returns}`" if is_property else f"`{node.name}({arguments(node)}) -> {returns}`"
    doc = prose(ast.get_docstring(node) or "")
    return f"- {head}" + (f". {doc}".replace("\n\n", "\n\n    ") if doc else "")


def arguments(node: ast.FunctionDef) -> str:
    """As they are declared, without ``self``."""
    given = _code(node.args).removeprefix("self").removeprefix(", ")
    return re.sub(r"(?<=[\w\]])=(?=\S)", " = ", given)


def prose(doc: str) -> str:
    """A docstring as Markdown: one line a paragraph, and single backticks."""
    paragraphs = re.split(r"\n\s*\n", doc.strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("``", "`")
