"""DeepSpeed's import, and what it leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
import torch

from mt_train.engine.deepspeed_import import import_deepspeed


def test_deepspeed_comes_without_torchs_compiler() -> None:
    """Each start above ZeRO 0 imports DeepSpeed's Muon, which compiles a function that nobody calls: seconds a process."""
    before = torch.compile
    import_deepspeed(torch.device("cpu"))
    from deepspeed.runtime.zero.muon.original_muon import zeropower_via_newtonschulz5

    assert isinstance(zeropower_via_newtonschulz5, FunctionType)
    assert not hasattr(zeropower_via_newtonschulz5, "_torchdynamo_orig_callable")
    assert torch.compile is before


IMPORT = """
import sys, torch
from mt_train.engine.deepspeed_import import import_deepspeed
import_deepspeed(torch.device("cpu"))
from deepspeed.autotuning import autotuner
assert not autotuner.has_mlflow and "mlflow" not in sys.modules
import mlflow
assert mlflow.mine
"""


@pytest.mark.real_start
def test_deepspeed_comes_without_mlflow_which_a_run_can_import_then(tmp_path: Path) -> None:
    """Its autotuner imports MLflow where it is, and with it pandas and a thread of pyarrow's: 8 s a start, and no fork server."""
    (tmp_path / "mlflow.py").write_text("mine = True\n")
    subprocess.run([sys.executable, "-c", IMPORT], cwd=tmp_path, check=True, timeout=600)
