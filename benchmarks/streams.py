"""Processor time of a stream on the ranks of one machine: each encodes every row, or a share.

    python benchmarks/streams.py [--pairs 3] [--blocks 10] [--rows-of-block 1000] [--ranks 1 2 4]

Rows and tokenizer are those of ``data.py``: ``text``, and ``chat`` (conversations with masks), one core. For each number of ranks as many
processes, with a gloo group and no model, read blocks behind the first one after another; both ways alternate. Shown is the median rank of
each start, and of these the median (least, most): ``encoding`` is the time inside the encoder, ``all`` the process's with reading,
the exchange, and what its threads take; ``sent`` the bytes that a rank gives the others, a block.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from data import make, run_config

CASES, KEYS = ("text", "chat"), ("encoding", "all")


def read_blocks(folder: Path, case: str, blocks: int, size: int, *, shares: bool) -> dict[str, Any]:
    """Read so many blocks in this rank, and return its times."""
    from mt_core.plugins.host import PluginHost
    from mt_train.assemble.data import build_data
    from mt_train.assemble.parts import Parts
    from mt_train.assemble.stream import share_blocks
    from mt_train.data import encoding
    from mt_train.data.stream import blocks as block_module
    from mt_train.data.stream import shares as share_module
    from mt_train.engine import node_group
    from mt_train.engine.processes import Process, barrier, join_group
    from mt_train.plugins.resolve import resolve

    config = run_config(folder, case, None)
    config["dataset"]["name"] = "stream"
    config["data"] = {**config["data"], "cache": "none", "shuffle_buffer": size}
    config["train"]["steps"] = 1
    data, process = build_data(Parts.of(resolve(config, PluginHost.discover()))), Process.from_environment()
    assert data.stream is not None
    encode, gather, spent, sent = encoding.encode, node_group._gather, [], []

    def timed(*given: Any) -> Any:
        start = time.thread_time()
        found = encode(*given)
        spent.append(time.thread_time() - start)
        return found

    def counted(own: Any, *given: Any) -> Any:
        sent.append(own.numel() * own.element_size())
        return gather(own, *given)

    vars(block_module)["encode"] = vars(share_module)["encode"] = timed
    vars(node_group)["_gather"] = counted
    with join_group(process, 600):
        if shares:
            share_blocks(data.stream, process, timeout_seconds=600)
        barrier()
        start, end, digests = time.process_time(), data.stream.first.end, []
        for _ in range(blocks):
            block = data.stream.block(end)
            assert block is not None, "there are rows enough"
            end = block.end
            digests.append(block.samples.fingerprint()["sha256"])
        seconds = time.process_time() - start
        barrier()
    return {"encoding": sum(spent), "all": seconds, "sent": sum(sent) / blocks, "digests": digests}


def start_ranks(folder: Path, case: str, options: argparse.Namespace, ranks: int, *, shares: bool) -> dict[str, Any]:
    """Return the median rank of one start. Ranks are forked, and have imported everything."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as scratch:
        ends = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MT_STORE": f"{scratch}/store"}
            given = (folder, case, options.blocks, options.rows_of_block, shares, names, theirs)
            process = context.Process(target=be_rank, args=given)
            process.start()
            ends.append((process, ours))
        found = [ours.recv() for _, ours in ends]
        for process, _ in ends:
            process.join()
    assert all(each["digests"] == found[0]["digests"] for each in found), "all ranks have the same samples"
    medians = {key: statistics.median(each[key] for each in found) for key in (*KEYS, "sent")}
    return medians | {"digests": found[0]["digests"]}


def be_rank(folder: Path, case: str, blocks: int, size: int, shares: bool, names: dict[str, Any], end: Any) -> None:
    os.environ.update({name: str(value) for name, value in names.items()})
    end.send(read_blocks(folder, case, blocks, size, shares=shares))


def show(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} - {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--rows-of-block", type=int, default=1000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    import torch

    import mt_train.assemble.steps  # noqa: F401  before ranks are forked
    from mt_train.engine.deepspeed_import import import_deepspeed

    import_deepspeed(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch), (options.blocks + 1) * options.rows_of_block)
        print("| rows | ranks | | encoding, s a rank | all, s a rank | sent, KiB a block |\n|---|---|---|---|---|---|")
        for case in CASES:
            for ranks in options.ranks:
                ways: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
                for _ in range(options.pairs):
                    for shares, found in ways.items():
                        found.append(start_ranks(Path(scratch), case, options, ranks, shares=shares))
                digests = {tuple(each["digests"]) for found in ways.values() for each in found}
                assert len(digests) == 1, "both ways give the same samples"
                for shares, found in ways.items():
                    times = " | ".join(show([each[key] for each in found]) for key in KEYS)
                    way = "a share" if shares else "every row"
                    print(f"| {case} | {ranks} | {way} | {times} | {found[0]['sent'] / 1024:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
