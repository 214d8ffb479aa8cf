"""The example model has the numbers of its paper, and what its own tests, those of the conformance kit, leave open."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import mt_core
import mt_core.nn
from mt_conformance.forward import Numbers
from mt_core.nn import Batch, KVCache, TokenObjective, tensor_generator
from mt_train.generation.decoder import Decoder
from mt_train.generation.loaded_model import LoadedModel
from mt_train.generation.request import Request

EXAMPLE = Path(__file__).parents[2] / "examples/hello_plugin"
PACKAGE = "mt_plugin_hello"
SHAPE = {"vocab_size": 20, "max_seq_len": 64, "dim": 8, "n_layers": 3, "kernel_size": 3}


@pytest.fixture(scope="module")
def example() -> Iterator[SimpleNamespace]:
    """The package's modules, by path: it is not installed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE / "src"))
        yield SimpleNamespace(**{name: import_module(f"{PACKAGE}.{name}") for name in ("plugin", "config", "model")})
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def build(example: SimpleNamespace, **shape: int) -> Any:
    """A model with every parameter drawn at random, biases and norms included, so that a dropped one shows."""
    model = example.model.GatedConv(example.config.GatedConvConfig(**shape))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            model.init_tensor(name, parameter, tensor_generator(0, name))
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture
def model(example: SimpleNamespace) -> Any:
    return build(example, **example.config.VARIANTS["tiny"])


def row(lengths: list[int], vocab_size: int = 256) -> Batch:
    total = sum(lengths)
    ids = torch.randint(0, vocab_size, (1, total), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    return Batch(ids, ids, positions, documents).with_index()


# ----------------------------------------------------------------------------------------------------------- documents


def test_a_nan_in_one_document_stays_there(model: Any) -> None:
    batch = row([11, 20, 9])
    outputs = model(batch)
    batch.input_ids[0, 11:31] = 259  # an id that no byte has
    with torch.no_grad():
        model.embed.weight[259] = math.nan
    poisoned = model(batch)
    assert poisoned[:, 11:31].isnan().all()
    assert torch.equal(poisoned[:, :11], outputs[:, :11])
    assert torch.equal(poisoned[:, 31:], outputs[:, 31:])


def test_no_gradient_flows_into_another_document(model: Any) -> None:
    batch = row([11, 20, 9])
    batch.input_ids[:] = torch.arange(40)
    model(batch)[:, 11:31].square().sum().backward()
    touched = model.embed.weight.grad.any(-1).nonzero().flatten()
    assert touched.tolist() == list(range(11, 31))


# ---------------------------------------------------------------------------------------------------------- generation


def test_the_cache_stays_as_small_as_one_window(model: Any) -> None:
    cache = KVCache()
    model(row([300]), cache)
    before = model.config.kernel_size - 1
    for index in range(model.config.n_layers):
        state = cache.get(index)
        assert state.shape == (1, before, model.config.dim)
        assert state.untyped_storage().nbytes() == state.nbytes, "the state keeps more in memory than it shows"


def test_rows_whose_state_is_no_keys_and_values_join_and_leave(model: Any) -> None:
    """Prompts in pieces, a shared beginning with other lengths after it, and places of the cache that are few."""
    loaded = LoadedModel(model, Numbers(), 256)  # type: ignore[arg-type]
    shared = list(range(40))
    requests = [
        Request(ids=[*(shared if index % 2 else []), *range(index + 1)], most=3 + index % 5, index=index)
        for index in range(24)
    ]

    def texts(rows: int, **options: int) -> dict[int, str]:
        decoder, found = Decoder(loaded, max_rows=rows, **options), {}
        for request in requests:
            decoder.add(request)
            found.update({each.number: each.text for each in decoder.step() if each.is_last})
        while decoder.busy:
            found.update({each.number: each.text for each in decoder.step() if each.is_last})
        return found

    assert texts(1) == texts(6, prefill_tokens=16) == texts(24) == texts(6, max_tokens=200)


# ------------------------------------------------------------------------------------------------------------- numbers


def reference(weights: dict[str, Tensor], ids: list[int], kernel_size: int) -> list[Tensor]:
    """Hidden states of one document by the paper's equation 1, token by token, tap by tap, with plain sums."""

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean() + 1e-6).sqrt() * gain

    hidden = [weights["embed.weight"][token] for token in ids]
    for index in range(SHAPE["n_layers"]):
        block = f"blocks.{index}."
        inputs = [norm(x, weights[block + "norm.weight"]) for x in hidden]
        taps = weights[block + "conv.weight"].chunk(kernel_size, 1)  # oldest first
        for t in range(len(ids)):
            both = weights[block + "conv.bias"].clone()
            for age in range(min(kernel_size, t + 1)):
                both += taps[kernel_size - 1 - age] @ inputs[t - age]
            linear, gate = both.chunk(2)
            hidden[t] = hidden[t] + linear / (1 + (-gate).exp())
    return [norm(x, weights["norm.weight"]) for x in hidden]


def test_outputs_equal_the_papers_formula_in_float64(example: SimpleNamespace) -> None:
    model, lengths = build(example, **SHAPE), [1, 2, 12, 5]
    batch = row(lengths, SHAPE["vocab_size"])
    weights = {name: value.double() for name, value in model.state_dict().items()}
    documents = batch.input_ids[0].split(lengths)
    wanted = [x for ids in documents for x in reference(weights, ids.tolist(), SHAPE["kernel_size"])]
    torch.testing.assert_close(model(batch)[0].double(), torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_flops_are_those_that_torch_counts(model: Any) -> None:
    with FlopCounterMode(display=False) as counter:
        model.head(model(row([40]))).sum().backward()
    assert counter.get_total_flops() == model.flops_per_token(40) * 40


class TensorSizes(TorchDispatchMode):
    """The number of elements of every tensor that is made, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.made += [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        return out


def test_no_tensor_grows_faster_than_the_row(example: SimpleNamespace) -> None:
    model, objective, steps = build(example, **SHAPE), TokenObjective(), []
    for length in (128, 256, 512):
        batch = row([length // 2, length // 4, length // 4], SHAPE["vocab_size"])
        with TensorSizes() as sizes:
            objective.loss(model(batch), model.head, batch).loss_sum.backward()
        model.zero_grad()
        steps.append(sizes.made)
    assert len(steps[0]) > 100
    for short, double, fourfold in zip(*steps, strict=True):
        assert double <= 2 * short
        assert fourfold <= 4 * short


# ------------------------------------------------------------------------------------------------------ the plugin


def test_the_example_uses_public_names_only() -> None:
    public = {"mt_core": set(mt_core.__all__), "mt_core.nn": set(mt_core.nn.__all__)}
    for path in EXAMPLE.rglob("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
                assert {alias.name for alias in node.names} <= public.get(
                    node.module or "", {a.name for a in node.names}
                )
            outside = {
                name for name in modules if name.split(".")[0] not in {*sys.stdlib_module_names, "torch", "pydantic"}
            }
            assert outside <= set(public), f"{path.name} imports {outside}"


def test_every_size_is_a_config_and_a_window_of_one_token_is_refused(example: SimpleNamespace) -> None:
    (family,) = example.plugin.mt_model_configs()
    (component,) = example.plugin.mt_train_models()
    assert component.name == family.name
    for values in family.variants.values():
        with torch.device("meta"):
            assert component.build(family.config(**values)).layers()
    with pytest.raises(ValidationError, match="kernel_size"):
        family.config(**{**family.variants["tiny"], "kernel_size": 1})


def test_the_examples_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE)]
    result = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=1500, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
