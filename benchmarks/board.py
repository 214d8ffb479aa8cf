"""mt-board beside TensorBoard and trackio on the same data: runs of many steps, one of which goes on.

Measured: seconds until the list of runs is there and until the curve of one run is (a client of HTTP, not a browser), processor time
and bytes of a tick while one run grows, memory of the server. Each side runs in a process of its own, one after the other. What is
not installed is left out.

    python benchmarks/board.py --folder /tmp/board --runs 200 --steps 20000

trackio is asked in an environment of its own: ``--trackio ENVIRONMENT/bin/python``. Its database is filled by the function that its own
imports use, as far as that comes within ``--trackio-minutes``; then it is asked what its page asks: the runs and their curves, and each
second all of them again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

TICKS = 20


def record(step: int, draw: random.Random, rate: float) -> dict[str, Any]:
    """A record as mt-train writes them, with an evaluation every 200 steps."""
    loss = 1.5 + 4 * math.exp(-rate * step) + 0.1 * draw.gauss(0, 1)
    found = {"step": step, "loss": loss, "lr": 0.003 * min(1.0, step / 100), "grad_norm": 1 + 1 / step}
    found |= {"tokens": step * 16384, "tokens_per_second": 100_000.0 + 1000 * draw.random()}
    found |= {"memory_gib": 40.125, "data_wait_seconds": 0.001 * draw.random()}
    return found | ({"eval_loss": loss + 0.1} if step % 200 == 0 else {})


def write_runs(folder: Path, runs: int, steps: int) -> None:
    """Folders as mt-train leaves them; eight of them have figures of their own, the others copies."""
    texts = []
    for seed in range(min(runs, 8)):
        draw = random.Random(seed)
        texts.append("".join(json.dumps(record(step, draw, 0.001 * (seed + 1))) + "\n" for step in range(1, steps + 1)))
    for number in range(runs):
        run = folder / f"run-{number:03d}"
        run.mkdir(parents=True)
        (run / "run.yaml").write_text("model: {name: llama}\n")
        about = {"schema": 1, "model": "llama tiny", "total_steps": 2 * steps, "started": "2026-03-01T10:00:00"}
        (run / "about.json").write_text(json.dumps(about))
        (run / "metrics.jsonl").write_text(texts[number % len(texts)])


def write_events(folder: Path, runs: int, steps: int) -> None:
    """Write the same figures as TensorBoard's events."""
    from mt_core.protocols import StepRecord
    from mt_train.tracking.tensorboard import TensorBoardWriter

    for number in range(runs):
        place = folder / f"run-{number:03d}"
        place.mkdir(parents=True)
        if number:
            for file in (folder / "run-000").iterdir():
                os.link(file, place / file.name)
            continue
        writer, draw = TensorBoardWriter(place, purge_step=None), random.Random(0)
        for step in range(1, steps + 1):
            known = record(step, draw, 0.001)
            evaluation = {"eval_loss": known.pop("eval_loss")} if "eval_loss" in known else {}
            writer.append(StepRecord(**known, metrics={}, evaluation=evaluation, counts_tokens=True))
        writer.close()


@contextmanager
def process(*command: str, env: Mapping[str, str] | None = None) -> Iterator[psutil.Process]:
    """A server, ended again."""
    nothing = subprocess.DEVNULL
    started = subprocess.Popen(command, env=env, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        yield psutil.Process(started.pid)
    finally:
        children = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
        for child in children:
            if child.is_running():
                child.kill()


def cost(of: psutil.Process) -> tuple[float, float]:
    """Processor seconds and MB of a process and what it has started."""
    alive = [of, *of.children(recursive=True)]
    times = [each.cpu_times() for each in alive]
    return sum(each.user + each.system for each in times), sum(each.memory_info().rss for each in alive) / 1e6


def get(port: int, path: str) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read()
    finally:
        connection.close()


def await_port(port: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"nobody listens on port {port}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def events(port: int, path: str) -> Generator[tuple[int, dict[str, Any]]]:
    """Size and content of each event."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    try:
        for line in answer:
            if line.startswith(b"data: "):
                yield len(line), json.loads(line[6:])
    finally:
        connection.close()


def measure_board(folder: Path, steps: int) -> dict[str, Any]:
    port, run = free_port(), folder / "run-000"
    (run / ".lock").write_text(json.dumps(lock()))
    began = time.monotonic()
    with process(sys.executable, "-m", "mt_plugin_board.command", str(folder), "--port", str(port)) as server:
        await_port(port)
        found: dict[str, Any] = {"start_seconds": time.monotonic() - began}
        began = time.monotonic()
        index = events(port, "/live/index")
        size, content = next(index)
        found |= {"list_seconds": time.monotonic() - began, "list_kb": size / 1e3, "listed": len(content["rows"])}
        page = f"/live/runs?run={quote(f'{folder.name}/run-000')}"
        began = time.monotonic()
        stream = events(port, page)
        size, _ = next(stream)
        found |= {"curve_seconds": time.monotonic() - began, "curve_kb": size / 1e3}
        stream.close()
        began = time.monotonic()
        while any(row.get("best") is None for row in rows_of(index, content)):
            time.sleep(0.1)
        found["best_of_all_after_seconds"] = time.monotonic() - began
        for name, path in (("list", "/live/index"), ("run", page)):
            index.close()
            found |= measure_ticks(server, port, path, run, steps, name)
            steps += TICKS
        found["memory_mb"] = cost(server)[1]
    (run / ".lock").unlink()
    return found


def rows_of(index: Iterator[tuple[int, dict[str, Any]]], content: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines as they are after the next event."""
    rows = content.setdefault("known", {row["id"]: row for row in content["rows"]})
    rows |= {row["id"]: row for row in next(index)[1]["rows"]}
    return list(rows.values())


def measure_ticks(server: psutil.Process, port: int, path: str, run: Path, steps: int, name: str) -> dict[str, float]:
    """Processor time of ticks while one run grows by a step a second, beside that of ticks without news, and the bytes of each."""
    stream = events(port, path)
    next(stream)
    time.sleep(1.5)
    before, began = cost(server)[0], time.monotonic()
    time.sleep(10)
    idle = (cost(server)[0] - before) / (time.monotonic() - began) / 2
    draw, sizes, delays = random.Random(steps), [], []
    before, began = cost(server)[0], time.monotonic()
    for step in range(steps + 1, steps + 1 + TICKS):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record(step, draw, 0.001)) + "\n")
        written = time.monotonic()
        sizes.append(next(stream)[0])
        delays.append(time.monotonic() - written)
        time.sleep(max(0.0, 1.0 - (time.monotonic() - written)))
    seconds = (cost(server)[0] - before) / ((time.monotonic() - began) * 2)
    stream.close()
    return {
        f"{name}_tick_ms_idle": idle * 1e3,
        f"{name}_tick_ms": seconds * 1e3,
        f"{name}_tick_kb": max(sizes) / 1e3,
        f"{name}_delay_seconds_most": max(delays),
    }


def lock() -> dict[str, Any]:
    """The text of a lock that a process holds which lives."""
    from dataclasses import asdict

    from mt_train.checkpoint.lock import Holder

    return asdict(Holder.this()) | {"process": os.getppid()}


def measure_tensorboard(folder: Path, runs: int) -> dict[str, Any]:
    """Until all runs are listed with their last step, as its data loads in the background; then the loss of one run."""
    port, began = free_port(), time.monotonic()
    command = (sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port))
    with process(*command) as server:
        await_port(port)
        found: dict[str, Any] = {"start_seconds": time.monotonic() - began}
        began = time.monotonic()
        while len(json.loads(get(port, "/data/runs"))) < runs and time.monotonic() - began < 240:
            time.sleep(0.5)
        tags: dict[str, Any] = {}
        while sum("loss" in str(tag) for tag in tags.values()) < runs and time.monotonic() - began < 240:
            tags = json.loads(get(port, "/data/plugin/scalars/tags"))
            time.sleep(0.5)
        found |= {"list_seconds": time.monotonic() - began, "listed": len(tags)}
        tag = next(name for name in next(iter(tags.values())) if name.endswith("loss"))
        began = time.monotonic()
        content = get(port, f"/data/plugin/scalars/scalars?run=run-000&tag={quote(tag, safe='')}")
        found |= {"curve_seconds": time.monotonic() - began, "curve_kb": len(content) / 1e3}
        found["curve_points"] = len(json.loads(content))
        before, began = cost(server)[0], time.monotonic()
        time.sleep(20)
        found["idle_cpu_share"] = (cost(server)[0] - before) / (time.monotonic() - began)
        found["memory_mb"] = cost(server)[1]
    return found


PROJECT = "board"
RUNS_A_REQUEST = 64
"""Runs whose curves the page of trackio asks for at once (``MAX_BATCH_RUNS``)."""
FILL_TRACKIO = """
import json, sys, time
from pathlib import Path
from trackio.sqlite_storage import SQLiteStorage
folder, project, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
end = time.monotonic() + seconds
for run in sorted(folder.iterdir()):
    if time.monotonic() > end:
        break
    records = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    steps = [record.pop("step") for record in records]
    SQLiteStorage.bulk_log(project=project, run=run.name, metrics_list=records, steps=steps)
"""
GROW_TRACKIO = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
for line in sys.stdin:
    record = json.loads(line)
    SQLiteStorage.bulk_log(project=sys.argv[1], run="run-000", metrics_list=[record], steps=[record.pop("step")])
    print("written", flush=True)
"""
SHOW_TRACKIO = """
import sys, trackio
trackio.show(project=sys.argv[1], open_browser=False, block_thread=True)
"""


def measure_trackio(python: Path, runs: Path, steps: int, folder: Path, minutes: float) -> dict[str, Any]:
    """The first view of its page (the curves of all runs), then that of one run, each followed while that run grows."""
    port, found = free_port(), dict[str, Any]()
    environment = os.environ | {"TRACKIO_DIR": str(folder), "GRADIO_SERVER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    if not folder.exists():
        began = time.monotonic()
        words = [str(python), "-c", FILL_TRACKIO, str(runs), PROJECT, str(60 * minutes)]
        subprocess.run(words, env=environment, check=True)
        found["fill_seconds"] = time.monotonic() - began
    began = time.monotonic()
    writer = subprocess.Popen(
        [str(python), "-c", GROW_TRACKIO, PROJECT],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None, "it is a pipe"
    assert writer.stdout is not None, "it is a pipe"
    with process(str(python), "-c", SHOW_TRACKIO, PROJECT, env=environment) as server:
        await_port(port)
        found["start_seconds"] = time.monotonic() - began
        began = time.monotonic()
        names = [{"run": run["name"], "run_id": run.get("id")} for run in ask_trackio(port, "get_runs_for_project")[0]]
        found |= {"listed": len(names), "list_seconds": time.monotonic() - began}
        for name, chosen in (("all", names), ("one", [run for run in names if run["run"] == "run-000"])):
            began = time.monotonic()
            logs, size = logs_of_trackio(port, chosen)
            found |= {f"{name}_curve_seconds": time.monotonic() - began, f"{name}_curve_kb": size / 1e3}
            found["curve_points"] = len(logs[0]["logs"])
            before, sizes, waits = cost(server)[0], [], []
            draw = random.Random(steps)
            for _ in range(TICKS // 2):
                steps += 1
                print(json.dumps(record(steps, draw, 0.001)), file=writer.stdin, flush=True)
                writer.stdout.readline()
                began = time.monotonic()
                size = sum(ask_trackio(port, each)[1] for each in ("get_all_projects", "get_runs_for_project"))
                sizes.append(size + logs_of_trackio(port, chosen)[1])
                waits.append(time.monotonic() - began)
                time.sleep(max(0.0, 1.0 - waits[-1]))
            found[f"{name}_tick_ms"] = (cost(server)[0] - before) / len(sizes) * 1e3
            found |= {f"{name}_tick_kb": max(sizes) / 1e3, f"{name}_tick_seconds": max(waits)}
        found["memory_mb"] = cost(server)[1]
    writer.stdin.close()
    writer.wait(30)
    return found


def logs_of_trackio(port: int, runs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The curves of runs as its page asks for them, and their bytes."""
    logs: list[dict[str, Any]] = []
    size = 0
    for begin in range(0, len(runs), RUNS_A_REQUEST):
        asked = runs[begin : begin + RUNS_A_REQUEST]
        found, length = ask_trackio(port, "get_logs_batch", runs=asked, scalar_only=True)
        logs, size = logs + found, size + length
    return logs, size


def ask_trackio(port: int, name: str, **parameters: Any) -> tuple[Any, int]:
    """Return the answer to its page, and the bytes of it."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        body = json.dumps(({} if name == "get_all_projects" else {"project": PROJECT}) | parameters)
        connection.request("POST", f"/api/{name}", body, {"Content-Type": "application/json"})
        content = connection.getresponse().read()
        return json.loads(content)["data"], len(content)
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where runs are written, if they are not there")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--what", nargs="+", default=["board", "tensorboard", "trackio"])
    parser.add_argument("--trackio", type=Path, metavar="PYTHON", help="python of an environment that has trackio")
    parser.add_argument("--trackio-minutes", type=float, default=15, help="minutes in which its database is filled")
    arguments = parser.parse_args()
    ours, events_folder = arguments.folder / "runs", arguments.folder / "events"
    if not ours.exists():
        write_runs(ours, arguments.runs, arguments.steps)
    sides: dict[str, Callable[[], dict[str, Any]]] = {"board": lambda: measure_board(ours, arguments.steps)}
    if find_spec("tensorboard") and "tensorboard" in arguments.what:
        if not events_folder.exists():
            write_events(events_folder, arguments.runs, arguments.steps)
        sides["tensorboard"] = lambda: measure_tensorboard(events_folder, arguments.runs)
    if arguments.trackio is not None:
        place = arguments.folder / "trackio"
        sides["trackio"] = lambda: measure_trackio(
            arguments.trackio, ours, arguments.steps, place, arguments.trackio_minutes
        )
    for name, measure in sides.items():
        if name in arguments.what:
            for key, value in measure().items():
                print(f"{name:12} {key:28} {value:,.3f}" if isinstance(value, float) else f"{name:12} {key:28} {value}")


if __name__ == "__main__":
    main()
