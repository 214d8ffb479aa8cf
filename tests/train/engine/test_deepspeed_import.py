"""DeepSpeed's import, and what it leaves out."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import FunctionType

import pytest
import torch

from mt_train.engine import deepspeed_import
from mt_train.engine.deepspeed_import import import_deepspeed


def test_deepspeed_comes_without_torchs_compiler() -> None:
    """Each start above ZeRO 0 imports DeepSpeed's Muon, which compiles a function that nobody calls: seconds a process."""
    before = torch.compile
    import_deepspeed(torch.device("cpu"))
    from deepspeed.runtime.zero.muon.original_muon import zeropower_via_newtonschulz5

    assert isinstance(zeropower_via_newtonschulz5, FunctionType)
    assert not hasattr(zeropower_via_newtonschulz5, "_torchdynamo_orig_callable")
    assert torch.compile is before


def test_deepspeed_comes_without_mlflow_which_a_run_can_import_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its autotuner imports MLflow where it is, and with it pandas and a thread of pyarrow's: 8 s a start, and no fork server."""
    (tmp_path / "mlflow.py").write_text("mine = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)

    def look_for_mlflow() -> None:
        with pytest.raises(ModuleNotFoundError, match="mlflow"):
            importlib.import_module("mlflow")

    monkeypatch.setattr(deepspeed_import, "_import_muon", look_for_mlflow)
    import_deepspeed(torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "mlflow", found := importlib.import_module("mlflow"))
    assert found.mine
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):  # what a run has imported stays
        import_deepspeed(torch.device("cpu"))
