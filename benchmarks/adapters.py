"""All adapters beside each other: held-out loss at equal trained numbers, step time and memory.

    python benchmarks/adapters.py [--only NAME …] [--seeds 3]   # adds to benchmarks/results/adapters.json what it does not have
    python benchmarks/adapters.py --costs [--only NAME …]       # step time and memory, anew, into adapter_costs.json beside it
    python benchmarks/adapters.py --page                        # table and picture of docs/adapters.md, from the two files alone

What is done is said in docs/adapters.md, and in ``adapter_runs.py`` (training), ``adapter_sizes.py`` (equal trained numbers) and
``adapter_costs.py``. One thread; a run that was killed goes on where it was, and two with different names may run at once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "adapters"))

import torch
from adapter_page import COSTS, LORA, RESULTS, write
from adapter_runs import Results, compare, summary
from catalogue import WHOLE, components


def measure(results: Results, names: list[str]) -> None:
    """Costs, anew; those of other settings go."""
    from adapter_costs import costs, settings

    if results.all.get("settings") != settings():
        results.path.unlink(missing_ok=True)
    results.all["settings"] = settings()
    for name in names:
        results.own[name] = found = costs(name)
        results.save()
        print(f"{name:<12} step {found['step']:.2f} {found['step_range']}   {found['bytes']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="adapters; all without it")
    parser.add_argument("--seeds", type=int, default=3, help="runs at the chosen rate")
    parser.add_argument("--costs", action="store_true", help="step time and memory")
    parser.add_argument("--page", action="store_true", help="write table and picture of docs/adapters.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.page:
        write()
        return
    names = options.only or [LORA, WHOLE, *(name for name in components() if name != LORA)]
    if options.costs:
        measure(Results(COSTS), names)
        return
    results = Results(RESULTS)
    results.begin()
    for name in names:
        compare(results, name, options.seeds)
        print(f"{name:<12} {summary(results.of(name))}", flush=True)


if __name__ == "__main__":
    main()
