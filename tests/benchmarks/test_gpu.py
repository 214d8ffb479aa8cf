"""The GPU's benchmark works before there is a GPU: its cases run small on a CPU, and one that fails stops none of the others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import gpu_checks
import gpu_sides
from gpu_sizes import SIZES, peak_of

from mt_train.engine.liger import replace_operations

CASES = {name: list(make()) for name, make in gpu.COMMANDS.items()}
TRAINED = [case for name in ("full", "lora", "limits") for case in CASES[name]]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    gpu_sides.make_weights(folder, SIZES["tiny"])
    return folder


def is_compiled(case: gpu.Case) -> bool:
    return bool(case.options.get("config", {}).get("train", {}).get("compile"))


def has_kernels(case: gpu.Case) -> bool:
    return "kernels" in case.options.get("config", {}).get("train", {})


def different(cases: list[gpu.Case]) -> Iterator[gpu.Case]:
    """One of those that differ in their length alone, which ``--size tiny`` takes away; compiling takes a minute a case."""
    seen: list[Any] = []
    for case in cases:
        if case.side == "ours" and not is_compiled(case) and not has_kernels(case) and case.options not in seen:
            seen.append(case.options)
            yield case


def short(case: gpu.Case) -> gpu.Case:
    return replace(case, steps=2)


@pytest.mark.parametrize("case", list(different(TRAINED)), ids=lambda case: case.name)
def test_our_cases_train_the_tiny_shape(case: gpu.Case, weights: Path) -> None:
    found = gpu.run_case(short(case), weights, "tiny")
    assert len(found["losses"]) == 2
    assert all(loss == pytest.approx(6.24, abs=0.2) for loss in found["losses"])  # ln 512: tokens are random
    assert found["tokens_per_second"] > 0
    assert found["allocated_gib"] > 0


def test_a_case_with_ligers_kernels_trains_the_same(
    weights: Path, liger_formulas: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Liger's formulas in the place of its kernels, and with the refusals of a CPU out of the way."""
    monkeypatch.setattr("mt_train.engine.layout.wrong_precision", lambda *given: [])
    monkeypatch.setattr("mt_train.assemble.model.use_liger", lambda model, device: replace_operations(model))
    eager, liger = (case for case in CASES["full"] if case.name in ("1B full: ours eager", "1B full: ours liger"))
    found = [gpu.run_case(short(case), weights, "tiny")["losses"] for case in (eager, liger)]
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert found[0] != found[1], "the kernels' formulas round in other places"


def test_cases_of_one_group_train_the_same(weights: Path) -> None:
    eager, zero = (case for case in CASES["full"] if case.name in ("1B full: ours eager", "1B full: ours ZeRO 1"))
    lines = [
        {"case": case.name, "group": case.group, **gpu.run_case(short(case), weights, "tiny")} for case in (eager, zero)
    ]
    assert "losses" in gpu.describe(lines[1], lines[0], gpu.FAR)
    assert "NOT THE SAME" not in gpu.describe(lines[1], lines[0], gpu.FAR)
    lines[1]["losses"] = [loss * 1.01 for loss in lines[1]["losses"]]
    assert "MORE THAN 0.005, NOT THE SAME TRAINING" in gpu.describe(lines[1], lines[0], gpu.FAR)


@pytest.mark.parametrize(
    "name", ["versions", "products", "attention", "chunked-loss", "compiled-blocks", "liger", "fp32"]
)
def test_checks_run_on_a_cpu_and_say_so(name: str, tmp_path: Path) -> None:
    found = gpu_checks.CHECKS[name](tmp_path)
    assert found
    if name == "compiled-blocks":
        assert (found["graphs"], found["breaks"]) == (1, 0)
    if name == "versions":
        assert found["device"] == "cpu: no figure here is from a GPU"


def test_a_check_that_is_off_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "MOST", 1e-9)
    with pytest.raises(AssertionError, match="attention differs from fp64"):
        gpu_checks.attention(tmp_path)


def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, cases: list[gpu.Case], **more: Any) -> Any:
    """Run cases, each process of which is ``script``, and return the lines."""
    stand_in = tmp_path / "case.py"
    stand_in.write_text("import sys\nname = sys.argv[sys.argv.index('--case') + 1]\n" + script)
    monkeypatch.setattr(gpu, "__file__", str(stand_in))
    monkeypatch.setitem(gpu.COMMANDS, "full", lambda: cases)
    monkeypatch.setattr(gpu, "weights_of", lambda size, folder: folder)
    options = {"command": "full", "out": tmp_path / "out.jsonl", "resume": False, "only": None, "size": None}
    gpu.measure(argparse.Namespace(**(options | {"far": 5e-3} | more)))
    return gpu.lines_of(tmp_path / "out.jsonl")


def trained(name: str, **more: Any) -> gpu.Case:
    return gpu.Case(name=name, side="ours", **more)


def test_a_case_that_fails_is_a_line_with_its_reason_and_the_rest_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "assert name != 'bad', 'OutOfMemoryError: 80 GiB'\nprint('chatter')\nprint('{\"figure\": 2.5}')"
    cases = [trained("bad"), trained("longer", after="bad"), trained("good")]
    bad, longer, good = run_with(tmp_path, monkeypatch, script, cases)
    assert "OutOfMemoryError: 80 GiB" in bad["error"]
    assert longer["error"] == "left out: bad failed"
    assert good["figure"] == 2.5
    assert "failed: " in capsys.readouterr().out


def test_a_case_that_hangs_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = run_with(tmp_path, monkeypatch, "import time\ntime.sleep(60)", [trained("slow", deadline=1)])
    assert line["error"] == "not done after 1 s"


def test_resume_leaves_out_what_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.jsonl").write_text(json.dumps({"case": "one", "group": ""}) + "\n")
    lines = run_with(tmp_path, monkeypatch, "print('{}')", [trained("one"), trained("two")], resume=True)
    assert [line["case"] for line in lines] == ["one", "two"]
    assert "wall_seconds" not in lines[0]
    assert "wall_seconds" in lines[1]


def test_the_host_alone_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import json, os\nprint(json.dumps({'seen': os.environ.get('CUDA_VISIBLE_DEVICES')}))"
    (line,) = run_with(tmp_path, monkeypatch, script, [trained("host", hidden_gpu=True)])
    assert line["seen"] == ""


def test_names_are_different_and_what_comes_after_comes_after() -> None:
    for cases in CASES.values():
        names = [case.name for case in cases]
        assert len(names) == len(set(names))
        assert all(case.after is None or case.after in names[:place] for place, case in enumerate(cases))


def test_weights_and_operations_of_a_size_are_those_of_the_model() -> None:
    """Counted by transformers on tensors without memory; Meta says 1.24 and 8.03 billion weights."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    for name, size in SIZES.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **size.shape))
        assert size.weights == sum(each.numel() for each in model.parameters()), name
    assert SIZES["1b"].weights == pytest.approx(1.24e9, rel=0.005)
    assert SIZES["8b"].weights == pytest.approx(8.03e9, rel=0.001)


def test_the_trainer_gets_the_same_rows_and_reports_the_same_figures(weights: Path) -> None:
    pytest.importorskip("accelerate")
    case = next(case for case in CASES["full"] if case.name == "1B full: Trainer sdpa")
    found = gpu.run_case(short(case), weights, "tiny")
    ours = gpu.run_case(short(next(c for c in CASES["full"] if c.name == "1B full: ours eager")), weights, "tiny")
    assert found["losses"] == pytest.approx(ours["losses"], rel=1e-3)


def test_a_gpu_that_the_table_lacks_has_no_peak() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_of("NVIDIA Unheard-of") is None
