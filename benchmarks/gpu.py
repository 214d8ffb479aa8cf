"""Checks of a GPU's kernels, and the speed of training there, beside ``transformers.Trainer``.

    python benchmarks/gpu.py check|full|lora|limits [--out gpu.jsonl] [--resume] [--only NAME…] [--size tiny]
    python benchmarks/gpu.py table --out gpu.jsonl

Every case is a process of its own with a deadline, and leaves one JSON line; one that fails is a line with its reason, and the rest
go on. ``--resume`` leaves out what has a line already. Cases of one group train the same weights on the same rows: their losses are
compared with those of the group's first case, and the table names the ones that are further apart than ``--far`` (relative).

Nothing is downloaded: weights are drawn on the device by shape. With ``--size tiny`` everything runs on a CPU too, which says whether
it works and nothing about speed, but for the peer's QLoRA. Peers need accelerate, and peft and liger-kernel where their names say so;
QLoRA needs bitsandbytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAR = 5e-3
"""Relative: bf16 keeps 8 bits, and two implementations round in other places. Measured between ours and the Trainer on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One process: a check by its name, or a training of one side. ``after`` is a case without which it makes no sense."""

    name: str
    side: str
    group: str = ""
    size: str = "tiny"
    length: int | None = None
    rows: int | None = None
    steps: int = 12
    deadline: int = 240
    after: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    hidden_gpu: bool = False


def ours(name: str, group: str, size: str, *, train: dict[str, Any] | None = None, **more: Any) -> Case:
    """A training of ours in bf16."""
    changes = {"train": {"dtype": "bf16", **(train or {})}, **more.pop("changes", {})}
    return Case(name=f"{group}: ours {name}", side="ours", group=group, size=size, options={"config": changes}, **more)


def peer(
    name: str, group: str, size: str, *, rows: int | None = None, length: int | None = None, **options: Any
) -> Case:
    """A training by the Trainer in bf16."""
    title = f"{group}: Trainer {name}"
    return Case(name=title, side="peer", group=group, size=size, options=options, rows=rows, length=length)


def check_cases() -> list[Case]:
    from gpu_checks import CHECKS

    return [
        Case(name=name, side=name, group="fp32" if name.startswith("fp32") else "", hidden_gpu=name.endswith("host"))
        for name in CHECKS
    ]


def full_cases() -> list[Case]:
    group, size = "1B full", "1b"
    return [
        peer("sdpa", group, size),
        ours("eager", group, size),
        ours("compile", group, size, train={"compile": True}),
        ours("liger", group, size, train={"kernels": "liger"}),
        ours("ZeRO 1", group, size, changes={"parallel": {"zero_stage": 1}}),
        ours("fp8, compile", f"{group} fp8", size, train={"matmul": "fp8", "compile": True}),
        peer("liger", group, size, liger=True),
        peer("compile", group, size, compile=True),
        peer("pure bf16, liger", f"{group} pure bf16", size, liger=True, pure_bf16=True),
    ]


def lora_cases() -> list[Case]:
    group, size = "8B LoRA", "8b"
    adapter = {"adapter": {"name": "lora", "rank": 16, "alpha": 32}}
    cases = [
        peer("peft", group, size, lora=True),
        ours("eager", group, size, changes=adapter),
        ours("compile", group, size, train={"compile": True}, changes=adapter),
        ours("liger", group, size, train={"kernels": "liger"}, changes=adapter),
        ours("recompute", group, size, train={"activation_checkpointing": True}, changes=adapter),
        peer("peft, liger", group, size, lora=True, liger=True),
        peer("peft, liger, recompute", group, size, lora=True, liger=True, recompute=True),
        peer("peft", "8B QLoRA", size, lora=True, nf4=True),
        ours("eager", "8B QLoRA", size, changes=adapter | {"quantizer": "nf4"}),
    ]
    for side in ("ours", "Trainer"):
        before: str | None = None
        for power in range(13, 18):
            title = f"8B LoRA, one row of {2**power:,}"
            shape: dict[str, Any] = {"length": 2**power, "rows": 1, "steps": 3, "after": before}
            if side == "ours":
                train = {"activation_checkpointing": True}
                case = ours("recompute", title, size, train=train, changes=adapter, **shape)
            else:
                options = {"lora": True, "liger": True, "recompute": True}
                case = Case(
                    name=f"{title}: Trainer peft, liger, recompute",
                    side="peer",
                    group=title,
                    size=size,
                    options=options,
                    **shape,
                )
            cases.append(case)
            before = case.name
    return cases


def limit_cases() -> list[Case]:
    recompute = {"activation_checkpointing": True}
    cases = [
        ours("8k, recompute", "8B full", "8b", length=8192, rows=1, steps=6, train=recompute, deadline=400),
        ours(
            "8k, fp8, recompute",
            "8B full fp8",
            "8b",
            length=8192,
            rows=1,
            steps=6,
            train=recompute | {"matmul": "fp8"},
            deadline=400,
        ),
    ]
    before: str | None = None
    for power in range(15, 20):
        title = f"1B full, one row of {2**power:,}"
        cases.append(ours("recompute", title, "1b", length=2**power, rows=1, steps=3, train=recompute, after=before))
        before = cases[-1].name
    return cases


COMMANDS = {"check": check_cases, "full": full_cases, "lora": lora_cases, "limits": limit_cases}


def run_case(case: Case, weights: Path, size: str | None) -> dict[str, Any]:
    """Run a case in this process. ``size`` takes the place of the case's own, whose rows are then that size's."""
    from gpu_checks import CHECKS
    from gpu_sides import train_ours, train_peer
    from gpu_sizes import SIZES

    if case.side in CHECKS:
        return CHECKS[case.side](weights)
    own = SIZES[size or case.size]
    length, rows = (own.length, own.rows) if size else (case.length or own.length, case.rows or own.rows)
    options = case.options
    if size:  # small layers multiply in fp8 too
        train = {**options.get("config", {}).get("train", {}), "fp8_min_size": 1}
        options = {**options, "config": {**options["config"], "train": train}} if "config" in options else options
    side = train_ours if case.side == "ours" else train_peer
    found = side(weights, own, options, steps=case.steps, length=length, rows=rows)
    return {**found, "flops_per_token": own.flops(length)}


def run_apart(case: Case, weights: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run a case in a process of its own, and return its line, whatever came of it."""
    command = [sys.executable, __file__, options.command, "--case", case.name, "--weights", str(weights)]
    command += ["--size", options.size] if options.size else []
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if case.hidden_gpu else {}
    began = time.perf_counter()
    line: dict[str, Any] = {"case": case.name, "group": case.group}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=case.deadline, env={**os.environ, **hidden}, check=False
        )
    except subprocess.TimeoutExpired:
        return line | {"error": f"not done after {case.deadline} s"}
    line["wall_seconds"] = round(time.perf_counter() - began, 1)
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode == 0 and last[0].startswith("{"):
        return line | json.loads(last[0])  # type: ignore[no-any-return]
    said = (
        [text for text in done.stderr.splitlines() if "Error" in text] or done.stderr.splitlines()[-1:] or ["no output"]
    )
    return line | {"error": said[-1][:400]}


def weights_of(size: str, folder: Path) -> Path:
    """Draw the weights of a size once, in a process of its own, so that none of its memory is kept."""
    path = folder / size
    if not (path / "config.json").is_file():
        command = [sys.executable, __file__, "make", "--size", size, "--weights", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()] if out.is_file() else []


def measure(options: argparse.Namespace) -> None:
    """Run what is asked for, and write a line for each case as it ends."""
    done = {line["case"]: line for line in lines_of(options.out)} if options.resume else {}
    if not options.resume:
        options.out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in COMMANDS[options.command]():
            if case.name in done or (options.only and not any(part in case.name for part in options.only)):
                continue
            if case.after in done and "error" in done[case.after]:
                line = {"case": case.name, "group": case.group, "error": f"left out: {case.after} failed"}
            else:
                trains = case.side in ("ours", "peer")
                line = run_apart(
                    case, weights_of(options.size or case.size, Path(folder)) if trains else Path(folder), options
                )
            done[case.name] = line
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(describe(line, first_of(line, done.values()), options.far), flush=True)


def first_of(line: dict[str, Any], lines: Any) -> dict[str, Any] | None:
    """Return the first line of the same group that has losses."""
    return next((each for each in lines if line["group"] and each["group"] == line["group"] and "losses" in each), None)


def describe(line: dict[str, Any], first: dict[str, Any] | None, far: float) -> str:
    """Describe a line for people: figures, ratio to the group's first, and how far losses are apart."""
    if "error" in line:
        return f"{line['case']:<44} failed: {line['error']}"
    if "tokens_per_second" not in line:
        shown = {key: round(value, 5) if isinstance(value, float) else value for key, value in line.items()}
        shown = {key: value for key, value in shown.items() if key not in ("case", "group", "losses", "wall_seconds")}
        return f"{line['case']:<44} {shown or 'ok'}{_apart(line, first, min(far, 1e-4))}"
    speed = line["tokens_per_second"]
    text = f"{line['case']:<44} {speed:>10,.0f} tokens/s ({line['slowest']:,.0f}-{line['fastest']:,.0f})"
    text += f"  {line['allocated_gib']:6.2f} GiB"
    if "reserved_gib" in line:
        text += f" ({line['reserved_gib']:.2f} reserved)"
    if line.get("peak_flops"):
        text += f"  MFU {speed * line['flops_per_token'] / line['peak_flops']:.1%}"
    if first is not None and first is not line:
        text += f"  x{speed / first['tokens_per_second']:.2f}"
    return text + _apart(line, first, far)


def _apart(line: dict[str, Any], first: dict[str, Any] | None, far: float) -> str:
    """Describe how far the losses are from the first's, each relative to it."""
    if first is None or first is line or "losses" not in line:
        return ""
    pairs = list(zip(line["losses"], first["losses"], strict=False))
    distance = max(abs(one - other) / abs(other) for one, other in pairs)
    return f"  losses {distance:.1e} apart" + ("" if distance <= far else f": MORE THAN {far:g}, NOT THE SAME TRAINING")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=(*COMMANDS, "table", "make"))
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"), help="file of the lines")
    parser.add_argument("--resume", action="store_true", help="leave out cases that have a line")
    parser.add_argument("--only", nargs="+", help="cases whose name has one of these in it")
    parser.add_argument("--size", choices=("tiny", "1b", "8b"), help="in the place of each case's own")
    parser.add_argument("--far", type=float, default=FAR, help="losses of a group may be so far apart (relative)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.command == "make":
        from gpu_sides import make_weights
        from gpu_sizes import SIZES

        make_weights(options.weights, SIZES[options.size])
    elif options.command == "table":
        lines = lines_of(options.out)
        for line in lines:
            print(describe(line, first_of(line, lines), options.far))
    elif options.case:
        case = next(case for case in COMMANDS[options.command]() if case.name == options.case)
        print(json.dumps(run_case(case, options.weights, options.size) | gpu_peak()))
    else:
        measure(options)


def gpu_peak() -> dict[str, float]:
    """Return the GPU's peak, for MFU; nothing without one."""
    import torch
    from gpu_sizes import peak_of

    peak = peak_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return {} if peak is None else {"peak_flops": peak}


if __name__ == "__main__":
    main()
