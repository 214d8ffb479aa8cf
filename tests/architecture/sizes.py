"""Sizes of the sources, computed from what imports what: ``python tests/architecture/sizes.py`` prints them, as CI does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]

CORE_LINES = 8_788
"""Physical lines that ``mt_core`` may have, all that it imports included."""
GROWN: dict[str, int] = {
    "a plugin may bring a kind, and components are made of any (docs/decisions/0056-kinds-are-data.md)": 250,
    "a plugin may ask a model for scores and texts on every layout (docs/decisions/0058-subjects.md)": 410,
    "an objective may learn from items of several documents and have terms of its own (docs/decisions/0061-items.md)": 292,
    "an objective's loss may couple the documents of a step, the same on every layout (docs/decisions/0064-coupled-steps.md)": 20,
    "ranks may divide the experts of any model's layers (docs/decisions/0074-expert-ranks.md)": 45,
    "attention has sinks, chunks and values of another width, for every family alike (docs/decisions/0071-sinks-and-chunks.md)": 260,
    "whatever adapter a plugin brings, the model without it can be asked while it trains (docs/decisions/0065-views.md)": 40,
    "a family has mixtures of experts, fused or as projections, from blocks (docs/decisions/0073-two-forms-of-experts.md)": 900,
    "a decoder family is a page: attention, MLP, block, sizes, config.json by tables (docs/decisions/0076-decoder-blocks.md)": 760,
    "images, sequences and sounds stand in the rows of any model, whoever encodes them (docs/decisions/0079-media.md)": 543,
    "tokens of images have times, rows and columns, and features enter several blocks (docs/decisions/0083-positions-of-media.md)": 230,
    "short documents attend in blocks of queries on CPUs, in every model (docs/decisions/0091-short-documents-and-pairs-as-one.md)": 150,
    "a gated MLP, and q, k and v, with pairs beside them are one function, for every family and variant (the same page)": 190,
    "an MLP of any family runs in tiles of tokens, and an engine runs blocks its own way (docs/decisions/0097-long-rows.md)": 64,
    "files_of takes addresses, which a distribution serves (docs/decisions/0099-remote-files.md)": 60,
    "attention of packed rows stands in the graph of a compiled block, for every family (docs/decisions/0107-one-graph-a-block.md)": 30,
    "on a GPU the loss and the norm are torch's kernels, for every family alike (docs/decisions/0111-kernels-of-a-gpu.md)": 50,
    "a trained gated MLP and fused experts of any family keep less for the backward, with the bits of their parts": 100,
    "blocks report figures, a model acts after an update, and keeps what nothing trains (docs/decisions/0072-steps-of-a-model.md)": 160,
}
"""Reason → lines that it may have more. To grow: one entry, whose reason says what a plugin's author gets for the lines, and
why it belongs into every installation. Blocks may grow so; the contract, plugins and the scaffold may not (``CONTRACT_LINES``)."""
CONTRACT_LINES = 4_480
"""Lines of the core that are no blocks."""
BLOCKS = tuple(
    f"mt_core.{part}"
    for part in (
        "nn",
        "adapters",
        "files",
        "weights",
        "data",
        "config.experts",
        "config.decoder",
        "config.rope",
        "groups",
        "rows",
        "warmup",
        "step_context",
        "evaluation",
        "generation",
        "media",
    )
)
"""What models, adapters, datasets, optimizers and schedules are made of, and the shapes of rows."""
LONGEST, MEDIAN = 60, 12
"""Lines of a function, its signature and docstring included."""
LONGEST_FILE = 300


def sources() -> list[Path]:
    """Every module of the distributions here."""
    return sorted([*ROOT.glob("*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])


@cache
def modules() -> dict[str, Path]:
    """Dotted name → file."""
    found = {}
    for path in sources():
        parts = path.relative_to(path.parents[len(path.parents) - 1 - path.parts.index("src")]).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def closure(*starts: str) -> set[str]:
    """The modules of ours that these import, one through the other, wherever the import stands."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports(name)
    return seen


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of ours that one imports; a public name of the core is the module that defines it, and every module needs its package."""
    found = {module.rpartition(".")[0]}
    for node in ast.walk(ast.parse(modules()[module].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
            found |= {_stub(base).get(alias.name, "") for alias in node.names}
    return frozenset(found & modules().keys())


def _base(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if modules()[module].name == "__init__.py" else module.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


@cache
def _stub(package: str) -> dict[str, str]:
    """Public name → its module, where the package has a stub that lists them."""
    file = modules()[package].with_suffix(".pyi") if package in modules() else Path()
    if not file.is_file():
        return {}
    nodes = [node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in nodes for alias in node.names}


def lines(names: set[str]) -> int:
    """Physical lines of modules; a stub beside one only lists names, and does not count."""
    return sum(len(modules()[name].read_text("utf-8").splitlines()) for name in names)


def core() -> set[str]:
    """What an installation of mt-core alone has, and all that it imports."""
    return closure(*(name for name in modules() if name.partition(".")[0] == "mt_core"))


def contract() -> set[str]:
    """The part of the core that is no block: the contract, finding and checking plugins, and the scaffold."""
    return {name for name in core() if not f"{name}.".startswith(tuple(f"{block}." for block in BLOCKS))}


def functions() -> Iterator[tuple[str, int]]:
    """Every function with its lines."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1


def files() -> dict[str, int]:
    """Every file with its lines."""
    return {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in sources()}


def main() -> None:
    """Print the sizes."""
    allowed = CORE_LINES + sum(GROWN.values())
    print(f"mt_core: {lines(core()):,} lines of {allowed:,}; contract, plugins and scaffold {lines(contract()):,}")
    train = closure("mt_train.cli.train", "mt_train.plugin")
    for package in sorted({name.partition(".")[0] for name in train}):
        part = {name for name in train if name.partition(".")[0] == package}
        print(f"mt-train runs {len(part)} modules of {package}: {lines(part):,} lines")
    sizes = [size for _, size in functions()]
    print(f"functions: {len(sizes):,}, median {median(sizes):g} lines, longest {max(sizes)}")
    print(f"files: {len(files()):,}, median {median(files().values()):g} lines, longest {max(files().values())}")


if __name__ == "__main__":
    main()
