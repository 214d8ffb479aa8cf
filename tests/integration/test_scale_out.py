"""Several nodes: two launchers that meet over a network, and the script for SLURM.

Nodes are network namespaces (Linux, as root) joined by a cable of the kernel's: no process can reach the other side over
loopback. What files they share is up to the test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mt_train.checkpoint.store import find, verify
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
WORDS = ["--model", "llama", "--model.n-layers", "1", "--train.sequence-len", "32", "--train.global-batch-size", "8"]
WORDS += ["--train.steps", "6", "--data.eval", "4", "--eval.every-steps", "3", "--eval.samples", "0"]
SHORT = ["--train.micro-batch-size", "4", "--parallel.timeout-seconds", "20"]
MODULE = "mt_train.cli.train"


@dataclass(frozen=True)
class Node:
    """A machine: how a command is run there, and its address."""

    number: int
    prefix: tuple[str, ...]
    address: str

    def start(self, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        for name in ("GLOO_SOCKET_IFNAME", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        environment["PATH"] = f"{SCRIPTS}{os.pathsep}{environment['PATH']}"
        line = [*self.prefix, *command]
        with self.output_file(folder).open("wb") as said:
            return subprocess.Popen(line, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)

    def output_file(self, folder: Path) -> Path:
        """What the command prints."""
        return folder / f"node-{self.number}.txt"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Two machines with a network between them. Skips where the system does not allow that, and says why."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux and the command ip (iproute2)")
    names = [f"mt{os.getpid()}{side}" for side in "ab"]
    made = [Node(i, ("ip", "netns", "exec", name), f"10.213.7.{i + 1}") for i, name in enumerate(names)]
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
            _ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", names[1], "netns", names[1])
            for node, name in zip(made, names, strict=True):
                _ip("-n", name, "address", "add", f"{node.address}/24", "dev", name)
                for link in (name, "lo"):
                    _ip("-n", name, "link", "set", link, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20, check=False)


def torchrun(node: Node, master: Node, words: list[str]) -> list[str]:
    place = ["--nnodes", "2", "--node-rank", str(node.number), "--nproc-per-node", "1"]
    return ["torchrun", *place, "--master-addr", master.address, "--master-port", "29500", "-m", MODULE, *words]


def deepspeed(node: Node, master: Node, words: list[str]) -> list[str]:
    place = ["--hostfile", "hosts", "--no_ssh", "--node_rank", str(node.number), "--master_addr", master.address]
    return ["deepspeed", *place, "--no_local_rank", "--module", MODULE, *words]


def together(
    nodes: list[Node], line: Callable[[Node, Node, list[str]], list[str]], words: list[list[str]], folder: Path
) -> tuple[list[int], list[str]]:
    """Start a command on each node; (exit codes, what each said)."""
    (folder / "hosts").write_text("".join(f"{node.address} slots=1\n" for node in nodes))
    running = [node.start(line(node, nodes[0], words[node.number]), folder) for node in nodes]
    try:
        codes = [process.wait(timeout=500) for process in running]
    finally:
        for process in running:
            process.kill()
    return codes, [node.output_file(folder).read_text(errors="replace") for node in nodes]


def losses(run: Path) -> list[float]:
    records = MetricsFile(run / "metrics.jsonl").read()
    return [record[key] for record in records for key in ("loss", "eval_loss") if key in record]


@pytest.fixture(scope="module")
def single_losses(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process with the same global batch."""
    run = tmp_path_factory.mktemp("alone") / "run"
    assert main([*WORDS, "--train.micro-batch-size", "8", "--output", str(run)]) == 0
    return losses(run)


@pytest.mark.parametrize(
    "launcher", [torchrun, pytest.param(deepspeed, marks=pytest.mark.soak)], ids=["torchrun", "deepspeed"]
)
def test_two_nodes_train_as_one_process_does(
    launcher: Callable[[Node, Node, list[str]], list[str]],
    nodes: list[Node],
    single_losses: list[float],
    tmp_path: Path,
) -> None:
    words = [*WORDS, *SHORT, "--output", "run"]
    codes, said = together(nodes, launcher, [words, words], tmp_path)
    assert codes == [0, 0], said
    assert losses(tmp_path / "run") == pytest.approx(single_losses, rel=1e-5)
    assert "2 ranks × 4 rows" in said[0], said
    assert "step 6/6" in said[0]
    assert "loss" not in said[1], "rank 0 speaks for all"
    assert verify(find(tmp_path / "run"))["step"] == 6
    assert {path.name for path in (tmp_path / "run/logs").iterdir()} == {"rank-0.log", "rank-1.log"}


@pytest.mark.soak
def test_nodes_that_do_not_see_one_folder_or_have_another_command_are_refused_before_the_first_step(
    nodes: list[Node], tmp_path: Path
) -> None:
    """The second node has a disk of its own where the run's folder is, and then another learning rate."""
    (tmp_path / "disk").mkdir()
    words = [*WORDS, *SHORT, "--output", "disk/run"]
    mount = f"mount -t tmpfs none {tmp_path / 'disk'} && exec "
    own = Node(1, ("unshare", "-m", "sh", "-c", mount + '"$@"', "sh", *nodes[1].prefix), nodes[1].address)
    codes, said = together([nodes[0], own], torchrun, [words, words], tmp_path)
    assert codes == [1, 1]
    assert any(
        re.search(r"rank 0 on \S+ writes the run to \S*disk/run, and rank 1 on \S+ cannot see it", text)
        for text in said
    ), said
    assert not (tmp_path / "disk/run/metrics.jsonl").exists()
    words = [*WORDS, *SHORT, "--output", "other"]
    codes, said = together(nodes, torchrun, [words, [*words, "--optimizer.lr", "0.5"]], tmp_path)
    assert codes == [1, 1]
    assert any("rank 1 would start another run than rank 0" in text for text in said), said
    assert any("optimizer.lr is 0.5 there and 0.003 on rank 0" in text for text in said), said


SRUN = """
import os, re, signal, subprocess, sys, threading
options = dict(word[2:].split("=", 1) for word in sys.argv[1 : sys.argv.index("bash")])
words = sys.argv[sys.argv.index("bash") :]
count = int(options.get("ntasks", 2))
tasks = []
for number in range(count):
    place = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), "SLURM_NTASKS": str(count)}
    tasks.append(subprocess.Popen(words, env=os.environ | place, stdout=subprocess.PIPE, text=True))
def follow(pipe):
    for line in pipe:
        print(line, end="", flush=True)
        if line.startswith("step 1/") and "SIGNAL" in os.environ:
            for task in tasks:
                task.send_signal(signal.SIGUSR1)
        if line.startswith("step 3/") and "KILL" in os.environ and count == 2:
            tasks[1].kill()
readers = [threading.Thread(target=follow, args=(task.stdout,)) for task in tasks]
for reader in readers: reader.start()
for reader in readers: reader.join()
sys.exit(max(task.wait() % 256 if task.wait() >= 0 else 128 - task.wait() for task in tasks))
"""
"""Stands for srun: starts two tasks, or as many as it is told, with SLURM's variables, signals both or kills one once they train, ends with
the highest code."""


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``submit(up, KEY=value)``: the script of a job of two nodes with a task each, of which these are up when it asks."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    scontrol = '[ "$1" = show ] && echo 127.0.0.1 || echo "$@" >> asked'
    tools = {"srun": f"#!{sys.executable}\n{SRUN}", "scontrol": f"#!/bin/bash\n{scontrol}\n"}
    tools["mt-train"] = f'#!/bin/bash\nexec {sys.executable} -m {MODULE} "$@"\n'
    tools["sinfo"] = '#!/bin/bash\n[ -z "$UP" ] || printf "%s\\n" $UP\n'

    def submitted(**more: str) -> subprocess.CompletedProcess[str]:
        for name, content in tools.items():
            (stubs / name).write_text(content)
            (stubs / name).chmod(0o755)
        here = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]", "CUDA_VISIBLE_DEVICES": ""}
        here |= {"SLURM_NTASKS_PER_NODE": "1", "MT_PAUSE": "0", "UP": ""}
        environment = {**os.environ, **here, "PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}"}
        words = [
            "bash",
            str(ROOT / "examples/slurm.sh"),
            *WORDS,
            *SHORT,
            "--checkpoint.every-steps",
            "2",
            "--output",
            "run",
        ]
        return subprocess.run(
            words, cwd=tmp_path, env=environment | more, capture_output=True, text=True, timeout=500, check=False
        )

    return submitted


@pytest.mark.long
def test_the_slurm_script_goes_on_with_the_nodes_that_are_left_at_the_same_rows(
    submit: Callable[..., subprocess.CompletedProcess[str]], single_losses: list[float], tmp_path: Path
) -> None:
    ended = submit(KILL="1", UP="127.0.0.1")
    assert ended.returncode == 0, ended.stderr
    assert "restart 1 of 3 after code 137: --nodes=1 --ntasks=1 --nodelist=127.0.0.1" in ended.stderr
    assert losses(tmp_path / "run") == pytest.approx(single_losses, rel=1e-5)


@pytest.mark.long
def test_the_slurm_script_says_that_no_node_is_left(
    submit: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    lost = submit(KILL="1", UP="")
    assert lost.returncode == 1
    assert "error: 0 nodes of node[1-2] are up, and the run cannot go on" in lost.stderr


def test_the_slurm_script_trains_and_queues_the_job_again_until_the_run_is_complete(
    submit: Callable[..., subprocess.CompletedProcess[str]], single_losses: list[float], tmp_path: Path
) -> None:
    first = submit(SIGNAL="USR1")
    assert first.returncode == 75, first.stderr
    assert "stopped by SIGUSR1 after step" in first.stderr
    assert (tmp_path / "asked").read_text() == f"requeue {os.getpid()}\n"
    assert json.loads((find(tmp_path / "run") / "manifest.json").read_text())["step"] < 6
    second = submit()
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "asked").read_text().count("requeue") == 1
    assert losses(tmp_path / "run") == pytest.approx(single_losses, rel=1e-5)
