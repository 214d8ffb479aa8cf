"""Cost of a command before it does anything: processor and wall seconds of fresh processes, beside Python's own.

Bytecode is kept, as an installation keeps it, whatever the environment says. The cases alternate, so that other work on the machine
disturbs all of them alike; medians are shown, with the least in brackets. Beside the commands: an interpreter that does nothing, and
imports that no command can do without. ``--modules`` adds which distributions the modules of `mt-train --help all` are of, with the
seconds in them, as ``python -X importtime`` has them (longer than without it).

    python benchmarks/start.py --rounds 15
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

GROUP = "mt_core.plugins"
PYTHON = {
    "python -c pass": "pass",
    "import importlib.metadata": "import importlib.metadata",
    "entry points of all distributions": f"import importlib.metadata as m; m.entry_points(group={GROUP!r})",
    "import pydantic (BaseModel, Field)": "from pydantic import BaseModel, Field",
    "import mt_core": "import mt_core",
    "mt-plugins, imported": "import mt_core.cli.plugins",
    "mt-train, imported": "import mt_train.cli.train",
}
COMMANDS = (
    "mt-plugins list",
    "mt-train --version",
    "mt-train --help",
    "mt-train --help all",
    "mt-train --completion bash",
    "mt-train --model llama --print-config",
)
COMPLETE = """
source "$1"; registered=$(complete -p mt-train); function=${registered#*-F }; function=${function%% *}
for round in {1..10}; do COMP_WORDS=(mt-train --model lla) COMP_CWORD=2; "$function" mt-train lla --model; done
[[ ${COMPREPLY[*]} == llama* ]]
"""
"""What bash does for ``mt-train --model lla<TAB>``, ten times over, in a shell that reads the script first."""


def cases() -> dict[str, list[str]]:
    """The command line of each case."""
    found = {name: [sys.executable, "-c", code] for name, code in PYTHON.items()}
    for command in COMMANDS:
        program, *words = command.split()
        found[command] = [shutil.which(program) or program, *words]
    return found


def shells(folder: Path) -> dict[str, list[str]]:
    """Completion in bash, beside a bash that does nothing."""
    if (bash := shutil.which("bash")) is None:
        return {}
    script = folder / "mt-train.bash"
    line = [shutil.which("mt-train") or "mt-train", "--completion", "bash"]
    script.write_text(subprocess.run(line, capture_output=True, text=True, check=True).stdout, encoding="utf-8")
    return {
        "bash -c :": [bash, "--norc", "-c", ":"],
        "ten completions in bash": [bash, "--norc", "-c", COMPLETE, "bash", str(script)],
    }


def seconds(command: list[str], bytecode: str) -> tuple[float, float]:
    """Processor and wall seconds of one fresh process, its children included; ``bytecode`` is a folder."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each case, in turn; the first round, which fills the caches, is not counted."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        every = cases() | shells(Path(folder))
        for number in range(rounds + 1):
            for name, command in every.items():
                taken = seconds(command, folder)
                if number:
                    found[name].append(taken)
    return found


def import_seconds() -> tuple[Counter[str], dict[str, float]]:
    """Modules of each top-level package that ``mt-train --help all`` imports, and the seconds in their own code."""
    line = [sys.executable, "-X", "importtime", "-m", "mt_train.cli.train", "--help", "all"]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stderr
    counts, taken = Counter[str](), defaultdict[str, float](float)
    for row in said.splitlines()[1:]:
        own, _, name = (part.strip() for part in row.removeprefix("import time:").split("|"))
        package = name.partition(".")[0]
        counts[package] += 1
        taken[package] += float(own) / 1e6
    return counts, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--modules", action="store_true", help="also where imports go")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}\n")
    print(f"{'':40} {'processor, s':>18} {'wall, s':>18}")
    for name, taken in measure(arguments.rounds).items():
        columns = [f"{statistics.median(each):.3f} ({min(each):.3f})" for each in zip(*taken, strict=True)]
        print(f"{name:40} {columns[0]:>18} {columns[1]:>18}")
    if arguments.modules:
        counts, taken_by = import_seconds()
        print(f"\n{sum(counts.values())} modules, {sum(taken_by.values()):.2f} s")
        for package, spent in sorted(taken_by.items(), key=lambda each: -each[1])[:12]:
            print(f"{package:40} {counts[package]:5} {spent:.3f}")


if __name__ == "__main__":
    main()
