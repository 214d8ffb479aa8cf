"""Ranks that do not run the same code are stopped before the first step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mt_plugin_llama


def test_a_rank_with_other_code_under_the_same_version_ends_the_run_which_names_the_plugin(tmp_path: Path) -> None:
    """As on a node whose copy somebody has worked on."""
    copy = shutil.copytree(Path(mt_plugin_llama.__file__).parent, tmp_path / "other" / "mt_plugin_llama")
    with (copy / "variants.py").open("a") as file:
        file.write("# a change\n")
    words = ["--model", "llama", "--train.steps", "1", "--data.eval", "none", "--output", str(tmp_path / "run")]
    command = [sys.executable, "-m", "mt_train.cli.train", *words]
    base = {**os.environ, "WORLD_SIZE": "2", "MT_STORE": str(tmp_path / "store"), "GLOO_SOCKET_IFNAME": "lo"}
    path = os.environ.get("PYTHONPATH", "")
    paths = [path, os.pathsep.join(filter(None, [str(tmp_path / "other"), path]))]
    ranks = [
        subprocess.Popen(
            command,
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": paths[rank]},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=1500)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2], said
    text = " ".join(" ".join(said).split())
    assert "rank 1 would start another run than rank 0" in text
    assert "SHA-256 of the code of mt-plugin-llama is '" in text
    assert "SHA-256 of the code of mt-core" not in text
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
