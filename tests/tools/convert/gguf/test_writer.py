"""GGUF files, read by transformers' own reader (``from_pretrained(gguf_file=…)``) and by the reader of the ``gguf`` package."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, quants
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from adapter_folders import IDS, of_run
from models import CONFIGS, make

from mt_core.errors import UsageError, WeightsError
from mt_tools.cli.export import main as mt_export
from mt_tools.convert.gguf import writer
from mt_tools.convert.gguf.writer import BLOCK, TYPES, write_gguf

READ = [name for name in CONFIGS if name != "gemma"]
"""transformers reads no GGUF file of the first Gemma."""
ROWS = torch.arange(3, 43)[None]


@pytest.fixture(scope="module")
def plain_run(train: Callable[..., Path]) -> Path:
    return train("--adapter", "lora")


def opened(file: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(ROWS).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", READ)
def test_transformers_reads_the_logits_that_the_folder_has(name: str, pretrained_folder: Path, tmp_path: Path) -> None:
    model = make(name, pretrained_folder, tmp_path / "model")
    want = logits(model)
    for kind in TYPES:
        write_gguf(tmp_path / "model", tmp_path / f"{kind}.gguf", kind, print)
    found = {kind: float((logits(opened(tmp_path / f"{kind}.gguf")) - want).abs().max()) for kind in TYPES}
    assert found["fp32"] <= 1e-4
    assert found["fp32"] < found["bf16"] <= 0.1 * float(want.std())
    assert found["bf16"] < found["q8_0"] <= 0.2 * float(want.std())


def test_the_ids_of_1000_texts_are_those_of_the_folder(pretrained_folder: Path, tmp_path: Path) -> None:
    make("llama", pretrained_folder, tmp_path / "model")
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "q8_0", print)
    ours = AutoTokenizer.from_pretrained(tmp_path / "model")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    drawn = random.Random(0)
    alphabet = [
        *"abcdefghij  \n\t.,'0123 WHT",
        "What is the capital",
        " Paris",
        "<|user|>",
        "</s>",
        "é",
        "日本",
        "\U0001f469\u200d\U0001f4bb",
    ]
    texts = ["".join(drawn.choices(alphabet, k=drawn.randint(1, 40))) for _ in range(1000)]
    assert [theirs(text)["input_ids"] for text in texts] == [ours(text)["input_ids"] for text in texts]
    assert theirs.chat_template == ours.chat_template
    assert (theirs.bos_token, theirs.eos_token) == (ours.bos_token, ours.eos_token)


NAMED = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": "{{ own }}"}]


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config.json": {"chat_template": "{{ own }}"}}, "{{ own }}"),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, "{{ own }}"),
        ({"chat_template.json": {"chat_template": "{{ own }}"}}, "{{ own }}"),
        (
            {"tokenizer_config.json": {"chat_template": "{{ own }}"}, "chat_template.json": {"chat_template": "x"}},
            "{{ own }}",
        ),
        ({"tokenizer_config.json": {"chat_template": NAMED[:1]}}, None),
        ({}, None),
    ],
)
def test_the_chat_template_is_read_from_whatever_file_has_it(
    files: dict[str, Any], template: str | None, pretrained_folder: Path, tmp_path: Path
) -> None:
    folder, said = tmp_path / "model", []
    make("llama", pretrained_folder, folder)
    (folder / "chat_template.jinja").unlink()
    for name, content in files.items():
        given = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps(given | content))
    write_gguf(folder, tmp_path / "model.gguf", "fp32", said.append)
    found = GGUFReader(tmp_path / "model.gguf").fields.get("tokenizer.chat_template")
    assert (None if found is None else found.contents()) == template
    assert ["no chat template" in each for each in said] == ([True] if template is None else [])


def test_a_folder_that_is_there_is_written_without_a_run(
    pretrained_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make("qwen2", pretrained_folder, tmp_path / "model")
    words = ["--output", str(tmp_path / "model"), "--gguf", str(tmp_path / "model.gguf"), "--gguf-type", "fp32"]
    assert mt_export(words) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'model.gguf'}: ")
    assert (logits(opened(tmp_path / "model.gguf")) - logits(model)).abs().max() <= 1e-4
    assert mt_export(words) == 1
    assert "nothing is overwritten" in capsys.readouterr().err


def test_8_bits_are_the_nearest_of_their_block(pretrained_folder: Path, tmp_path: Path) -> None:
    """Half a step of the scale, which is the largest number of 32 over 127; a scale is rounded to fp16. Vectors are as they were."""
    model = make("qwen3", pretrained_folder, tmp_path / "model")
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "q8_0", print)
    tensors = {each.name: each for each in GGUFReader(tmp_path / "model.gguf").tensors}
    want = model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    found = tensors["blk.1.ffn_down.weight"]
    assert found.tensor_type == GGMLQuantizationType.Q8_0
    values = quants.dequantize(found.data, found.tensor_type)
    step = numpy.abs(want.reshape(-1, BLOCK)).max(axis=1, keepdims=True) / 127
    assert (numpy.abs((values - want).reshape(-1, BLOCK)) <= step * 0.5 + 127 * step * 2**-11).all()
    norm = tensors["blk.1.attn_q_norm.weight"]
    assert norm.tensor_type == GGMLQuantizationType.F32
    assert (norm.data == model.model.layers[1].self_attn.q_norm.weight.detach().numpy()).all()


def test_gemmas_norms_have_their_1_and_rows_that_are_no_blocks_16_bits(pretrained_folder: Path, tmp_path: Path) -> None:
    model = make("gemma", pretrained_folder, tmp_path / "model", intermediate_size=80)
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "q8_0", print)
    tensors = {each.name: each for each in GGUFReader(tmp_path / "model.gguf").tensors}
    want = model.model.layers[0].input_layernorm.weight.detach().numpy()
    assert numpy.array_equal(tensors["blk.0.attn_norm.weight"].data, want + 1)
    assert tensors["blk.0.ffn_down.weight"].tensor_type == GGMLQuantizationType.F16
    assert tensors["blk.0.ffn_up.weight"].tensor_type == GGMLQuantizationType.Q8_0


def test_llama_3s_scaling_is_a_tensor_of_what_transformers_divides_by(pretrained_folder: Path, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = make("llama", pretrained_folder, tmp_path / "model", rope_parameters=scaling, head_dim=64)
    write_gguf(tmp_path / "model", tmp_path / "model.gguf", "fp32", print)
    (found,) = (each.data for each in GGUFReader(tmp_path / "model.gguf").tensors if each.name == "rope_freqs.weight")
    plain = 1 / 500_000 ** (torch.arange(0, 64, 2) / 64)
    want = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert {float(want.min()), round(float(want.max()), 5)} == {1.0, 8.0}
    numpy.testing.assert_allclose(found, want, rtol=1e-5)


def test_what_is_there_is_kept_and_a_file_that_fails_is_not(
    pretrained_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("llama", pretrained_folder, tmp_path / "model")
    (tmp_path / "there.gguf").write_text("mine")
    with pytest.raises(WeightsError, match="nothing is overwritten"):
        write_gguf(tmp_path / "model", tmp_path / "there.gguf", "fp32", print)
    assert (tmp_path / "there.gguf").read_text() == "mine"

    def full(tensor: Any, kind: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "_values", full)
    with pytest.raises(WeightsError, match=r"is full, .* that are needed were written"):
        write_gguf(tmp_path / "model", tmp_path / "new.gguf", "fp32", print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "there.gguf"]


def test_the_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'mt-tools\[gguf\]'"):
        writer.find_gguf()


def test_a_run_is_one_file_that_llama_cpp_continues_as_we_do_and_ollama_is_told_of(
    train: Callable[..., Path], export: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp is a server that reads the file with transformers, and ends where the file says that texts end."""
    run = train("--adapter", "lora", "--data.template", "zephyr", lr="1e-1")
    server = tmp_path / "llama-server"
    stand_in = Path(__file__).parents[1] / "stand_ins/llama_server.py"
    server.write_text(f"#!{sys.executable}\n" + stand_in.read_text())
    server.chmod(0o755)
    words = (
        "--run",
        run,
        "--merge",
        "--output",
        tmp_path / "out",
        "--gguf",
        tmp_path / "out.gguf",
        "--gguf-type",
        "fp32",
    )
    said = export(*words, "--ollama", "--check", "llama.cpp", "--reader", server)
    assert "out.gguf: llama.cpp continues 8 of 8 texts alike (512 tokens); its ids of the texts are ours" in said
    with torch.no_grad():
        assert (opened(tmp_path / "out.gguf")(IDS).logits - of_run(run)).abs().max() <= 1e-4
    lines = (tmp_path / "out/Modelfile").read_text().splitlines()
    assert lines[0] == "FROM ../out.gguf"
    assert 'PARAMETER stop """</s>"""' in lines
    keys = GGUFReader(tmp_path / "out.gguf").fields
    assert (
        keys["tokenizer.ggml.eos_token_id"].contents()
        == json.loads((tmp_path / "out/config.json").read_text())["eos_token_id"]
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gguf", "a.gguf"), "--gguf is of a whole model; add --merge"),
        (("--ollama",), "--ollama is of a whole model; add --merge"),
        (("--gguf-type", "q8_0"), "--gguf-type belongs to --gguf"),
        (("--shard-size", "1MB"), "--shard-size: for --merge only"),
        (("--merge", "--ollama"), "the run has 'own': ollama reads no Jinja"),
        (("--merge", "--check", "llama.cpp"), "add --merge --gguf FILE"),
    ],
)
def test_what_no_file_says_is_refused_before_anything_is_written(
    words: tuple[str, ...], says: str, plain_run: Path, export: Callable[..., str], tmp_path: Path
) -> None:
    assert says in export("--run", plain_run, "--output", tmp_path / "out", *words, fails=True)
    assert not (tmp_path / "out").exists()
