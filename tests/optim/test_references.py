"""Ten steps of every optimizer beside a library, or the paper's formula, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

RATES = [1e-2, 3e-2, 3e-2, 2e-2, 1e-2, 1e-2, 5e-3, 5e-3, 2e-3, 1e-3]
MATRICES = [(24, 10), (9, 17), (12, 12)]
VECTORS = [(7,), (1,)]


def weights(shapes: list[tuple[int, ...]], seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def gradients(shapes: list[tuple[int, ...]], steps: int = len(RATES)) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes] for _ in range(steps)]


def take_steps(
    optimizer: torch.optim.Optimizer, own: list[nn.Parameter], steps: list[list[Tensor]], rates: list[float] = RATES
) -> None:
    for rate, step in zip(rates, steps, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for weight, gradient in zip(own, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


def agree(
    build: Any,
    name: str,
    values: dict[str, Any],
    reference: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    shapes: list[tuple[int, ...]],
    *,
    dtype: torch.dtype = torch.float64,
    initial: dict[str, Callable[[int], Tensor]] | None = None,
    parameter: str = "{}",
    rates: list[float] = RATES,
    **group: Any,
) -> None:
    """The same weights, to 5e-6 of their size, after steps of different rates: 8e-7 at worst, where a reference decomposes in fp32."""
    mine, theirs = ([nn.Parameter(each.to(dtype)) for each in weights(shapes)] for _ in range(2))
    start, steps = (
        [each.detach().clone() for each in mine],
        [[g.to(dtype) for g in s] for s in gradients(shapes, len(rates))],
    )
    groups = [{"name": "all", "params": mine, **group}]
    take_steps(build(name, values, groups, initial=initial, parameter=parameter), mine, steps, rates)
    take_steps(reference(theirs), theirs, steps, rates)
    for a, b, before in zip(mine, theirs, start, strict=True):
        assert not torch.equal(a, before), "it moves at all"
        torch.testing.assert_close(a, b, rtol=5e-6, atol=1e-9 if dtype == torch.float64 else 1e-6)


ADAM = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6}


@pytest.mark.parametrize(
    ("name", "values", "theirs", "arguments"),
    [
        ("sgd", {"momentum": 0.9, "nesterov": True}, "SGD", {"momentum": 0.9, "nesterov": True}),
        ("sgd", {"weight_decay": 0.1}, "SGD", {"weight_decay": 0.1}),
        ("sgd", {"momentum": 0.5, "dampening": 0.3}, "SGD", {"momentum": 0.5, "dampening": 0.3}),
        ("rmsprop", {"alpha": 0.9, "centered": True}, "RMSprop", {"alpha": 0.9, "centered": True}),
        ("rmsprop", {"momentum": 0.4, "weight_decay": 0.1}, "RMSprop", {"momentum": 0.4, "weight_decay": 0.1}),
        ("adam", {**ADAM, "weight_decay": 0.1}, "Adam", {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
        ("adamax", ADAM, "Adamax", {"betas": (0.8, 0.95), "eps": 1e-6}),
        ("adafactor", {"d": 1.5, "weight_decay": 0.1}, "Adafactor", {"d": 1.5, "weight_decay": 0.1}),
        ("adafactor", {"eps": 1e-2, "beta2_decay": -0.5}, "Adafactor", {"eps": (None, 1e-2), "beta2_decay": -0.5}),
    ],
)
def test_torchs_optimizers_get_the_options_that_were_set(
    build: Any, name: str, values: dict[str, Any], theirs: str, arguments: dict[str, Any]
) -> None:
    make = getattr(torch.optim, theirs)
    agree(build, name, values, lambda own: make(own, lr=1.0, foreach=True, **arguments), MATRICES + VECTORS)


def test_adafactor_without_relative_steps_is_that_of_the_hugging_face_trainer(build: Any) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    options = {"scale_parameter": False, "relative_step": False}  # those of its optim=adafactor
    values = {"relative": False, "weight_decay": 0.1, "beta2_decay": -0.5}

    def reference(own: list[nn.Parameter]) -> torch.optim.Optimizer:
        return optimization.Adafactor(own, lr=1.0, weight_decay=0.1, decay_rate=-0.5, **options)  # type: ignore[no-any-return]

    agree(build, "adafactor", values, reference, [*MATRICES, *VECTORS, (3, 8, 6)])


def test_lion_is_that_of_pytorch_optimizer(build: Any) -> None:
    library = pytest.importorskip("pytorch_optimizer")
    values = {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3}
    agree(build, "lion", values, lambda own: library.Lion(own, betas=(0.8, 0.95), weight_decay=0.3), MATRICES + VECTORS)


@pytest.mark.parametrize("power", [0.0, 1.5])
def test_schedule_free_adamw_is_that_of_its_authors(build: Any, power: float) -> None:
    library = pytest.importorskip("schedulefree")
    shapes, values = MATRICES + VECTORS, {"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.2, "power": power}

    def reference(own: list[nn.Parameter]) -> torch.optim.Optimizer:
        made = library.AdamWScheduleFree(own, betas=(0.9, 0.95), weight_decay=0.2, r=power)
        made.train()
        return made  # type: ignore[no-any-return]

    agree(build, "schedule-free-adamw", values, reference, shapes)
    mine, theirs, steps = weights(shapes), weights(shapes), gradients(shapes)
    own, other = build("schedule-free-adamw", values, [{"params": mine}]), reference(theirs)
    take_steps(own, mine, steps)
    take_steps(other, theirs, steps)
    other.eval()  # type: ignore[attr-defined]
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own.average_of(a), b.detach(), rtol=5e-6, atol=1e-9)


def test_sparse_adam_is_that_of_torch_on_sparse_gradients(build: Any) -> None:
    mine, theirs = weights([(50, 6)]), weights([(50, 6)])
    own = build("sparse-adam", ADAM, [{"params": mine}])
    other = torch.optim.SparseAdam(theirs, betas=(0.8, 0.95), eps=1e-6)
    generator = torch.Generator().manual_seed(2)
    for rate in RATES:
        rows = torch.randperm(50, generator=generator)[:5]
        gradient = torch.zeros(50, 6, dtype=torch.float64)
        gradient[rows] = torch.randn(5, 6, generator=generator, dtype=torch.float64)
        own.param_groups[0]["lr"] = other.param_groups[0]["lr"] = rate
        mine[0].grad, theirs[0].grad = gradient.clone(), gradient.to_sparse(1)
        before = mine[0].detach().clone()
        own.step()
        other.step()
        assert (mine[0] != before).any(dim=1).sum() == 5
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-6, atol=1e-9)


def test_soap_is_that_of_pytorch_optimizer(build: Any) -> None:
    library = pytest.importorskip("pytorch_optimizer")
    values = {"weight_decay": 0.1, "update_steps": 3, "max_side": 20}
    options = {"weight_decay": 0.1, "precondition_frequency": 3, "max_precondition_dim": 20}
    agree(build, "soap", values, lambda own: library.SOAP(own, **options), MATRICES, transformed=True)
    agree(build, "soap", values, lambda own: library.SOAP(own, **options), VECTORS, transformed=False)


def test_galore_is_that_of_its_authors(build: Any) -> None:
    library = pytest.importorskip("galore_torch.adamw")
    special = {"rank": 4, "update_proj_gap": 4, "scale": 0.5, "proj_type": "std"}

    def reference(own: list[nn.Parameter]) -> torch.optim.Optimizer:
        return library.AdamW([{"params": own, **special}], weight_decay=0.1, no_deprecation_warning=True)  # type: ignore[no-any-return]

    values = {"rank": 4, "update_steps": 4, "scale": 0.5, "weight_decay": 0.1}
    agree(
        build, "galore", values, reference, MATRICES, dtype=torch.float32, transformed=True
    )  # theirs decomposes in fp32


@pytest.mark.parametrize(("beta1", "rates"), [(None, [*RATES, *RATES]), (0.9, [1e-2] * 20)], ids=["plain", "mean"])
def test_galore_with_adafactor_is_that_of_its_authors(build: Any, beta1: float | None, rates: list[float]) -> None:
    """Projected in blocks, and whole elsewhere. Their mean of updates has the rates in it: the same where these are one rate."""
    library = pytest.importorskip("galore_torch.adafactor")
    special = {"rank": 4, "update_proj_gap": 6, "scale": 0.5, "proj_type": "std"}
    values = {"rank": 4, "update_steps": 6, "scale": 0.5, "weight_decay": 0.1, "d": 0.7, "beta1": beta1 or 0.0}
    options = {"weight_decay": 0.1, "clip_threshold": 0.7, "beta1": beta1, "lr": 1.0, "relative_step": False}

    def reference(own: list[nn.Parameter], **projected: Any) -> torch.optim.Optimizer:
        return library.Adafactor([{"params": own, **projected}], scale_parameter=False, **options)  # type: ignore[no-any-return]

    keys: dict[str, Any] = {"rates": rates, "transformed": True}
    projected, block = partial(reference, **special), "model.layers.{}.up_proj.weight"
    agree(build, "galore-adafactor", values, projected, MATRICES, dtype=torch.float32, parameter=block, **keys)
    agree(build, "galore-adafactor", values, reference, [*MATRICES, *VECTORS, (3, 8, 6)], **keys)


def test_galore_with_adafactor_does_not_mix_the_biases_of_fused_experts(build: Any) -> None:
    """(experts, outputs) is no matrix: the squares of an expert's biases are its own."""
    weight = nn.Parameter(torch.zeros(4, 6))
    names: dict[str, Any] = {"parameter": "model.layers.{}.mlp.experts.up_proj_bias"}
    optimizer = build("galore-adafactor", {"rank": 2}, [{"params": [weight], "transformed": True}], **names)
    weight.grad = torch.ones(4, 6)
    optimizer.step()
    assert {key: tuple(each.shape) for key, each in optimizer.state[weight].items()} == {
        "step": (),
        "exp_avg_sq": (4, 6),
    }


def test_galore_with_8_bits_is_that_of_its_authors(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them small enough for 8 bits: theirs gives bitsandbytes 0.50 its arguments in an old order, which the 32-bit form feels."""
    pytest.importorskip("bitsandbytes")
    library = pytest.importorskip("galore_torch.adamw8bit")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # theirs asks for a GPU, and uses none here
    special = {"rank": 6, "update_proj_gap": 4, "scale": 0.5, "proj_type": "std"}

    def reference(own: list[nn.Parameter]) -> torch.optim.Optimizer:
        return library.AdamW8bit([{"params": own, **special}], weight_decay=0.1, min_8bit_size=16)  # type: ignore[no-any-return]

    values = {"rank": 6, "update_steps": 4, "scale": 0.5, "weight_decay": 0.1, "eps": 1e-8, "min_8bit_size": 16}
    agree(build, "galore-8bit", values, reference, [*MATRICES, (40, 30)], dtype=torch.float32, transformed=True)


def test_galore_with_8_bits_keeps_32_of_a_matrix_that_it_does_not_project(build: Any) -> None:
    """A of a LoRA, say: its shorter side is no longer than the rank, and its moments are those of plain GaLore."""
    pytest.importorskip("bitsandbytes")
    steps, found = gradients([(4, 1024)]), []
    for name in ("galore", "galore-8bit"):
        weight = nn.Parameter(torch.zeros(4, 1024))
        optimizer = build(name, {"rank": 4}, [{"params": [weight], "transformed": True}])
        take_steps(optimizer, [weight], [[each.float() for each in step] for step in steps])
        assert optimizer.state[weight]["exp_avg"].dtype == torch.float32
        found.append(weight.detach())
    assert torch.equal(*found)


@pytest.mark.parametrize(("name", "theirs"), [("8bit", "AdamW8bit"), ("4bit", "AdamW4bit"), ("fp8", "AdamWFp8")])
def test_torchaos_adamw_is_torchaos(build: Any, name: str, theirs: str) -> None:
    library = pytest.importorskip("torchao.optim")
    options = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "block_size": 64}

    class Eager:
        """Not compiled, with a rate that is a tensor."""

        def __init__(self, own: list[nn.Parameter]) -> None:
            self._made = getattr(library, theirs)(own, **options)
            self.param_groups = [{"lr": 0.0}]

        @torch.compiler.set_stance("force_eager")
        def step(self) -> None:
            self._made.param_groups[0]["lr"].fill_(self.param_groups[0]["lr"])
            self._made.step()

    shapes = [(64, 96), (4096,), (65, 64), (65, 65), (7,)]
    values = {**ADAM, "weight_decay": 0.1, "block_size": 64}
    agree(build, f"torchao-adamw-{name}", values, Eager, shapes, dtype=torch.float32)


@pytest.mark.parametrize("scaled", ["channel", "tensor"])
def test_apollo_is_that_of_its_authors(build: Any, scaled: str) -> None:
    library = pytest.importorskip("apollo_torch")
    special = {
        "rank": 4,
        "update_proj_gap": 4,
        "scale": 2.0,
        "proj_type": "std",
        "proj": "random",
        "scale_type": scaled,
    }

    def reference(own: list[nn.Parameter]) -> torch.optim.Optimizer:
        return library.APOLLOAdamW([{"params": own, **special}], weight_decay=0.1)  # type: ignore[no-any-return]

    values = {"rank": 4, "update_steps": 4, "scale": 2.0, "weight_decay": 0.1, "scaled": scaled}
    numbered = {"seed": lambda place: torch.tensor([place + 1])}  # ours follow from names
    agree(build, "apollo", values, reference, MATRICES, transformed=True, initial=numbered)


@pytest.mark.parametrize("empty", [0, 2])
def test_apollo_goes_on_after_a_gradient_of_zeros(build: Any, empty: int) -> None:
    """LoRA's A has one in the first step, since B is zero. The steps after it are as long as those before, or those of a later start."""
    mine, steps = weights(MATRICES), gradients(MATRICES)
    named = {"seed": lambda place: torch.tensor([place + 1])}
    own = build(
        "apollo", {"rank": 4}, [{"name": "all", "params": mine, "transformed": True, "lr": 1e-3}], initial=named
    )
    steps[empty] = [torch.zeros_like(each) for each in steps[empty]]
    for step in steps:
        before = [each.detach().clone() for each in mine]
        for weight, gradient in zip(mine, step, strict=True):
            weight.grad = gradient.clone()
        own.step()
        moved = [torch.linalg.vector_norm(a.detach() - b) for a, b in zip(mine, before, strict=True)]
        for distance, gradient, weight in zip(moved, step, mine, strict=True):
            if gradient.any():
                assert distance > 0.1 * 1e-3 * weight.numel() ** 0.5, "an update of Adam's size"
            else:
                assert distance == 0.0


@pytest.mark.parametrize(
    ("name", "values", "theirs", "options"),
    [
        ("lomo", {}, "LOMO", {}),
        (
            "adalomo",
            {"weight_decay": 0.1, "d": 0.5, "beta2_decay": -0.6, "least": 0.9},
            "AdaLOMO",
            {"weight_decay": 0.1, "clip_threshold": 0.5, "decay_rate": -0.6, "eps2": 0.9, "loss_scale": 0.0},
        ),
    ],
)
def test_fused_updates_are_those_of_pytorch_optimizer(
    build: Any, name: str, values: dict[str, Any], theirs: str, options: dict[str, Any]
) -> None:
    """Theirs happen in a backward, whose gradients are those that ours get."""
    library = pytest.importorskip("pytorch_optimizer")

    class Fused:
        def __init__(self, own: list[nn.Parameter]) -> None:
            self._own, self.param_groups = own, [{"lr": 0.0}]
            self._made = getattr(library, theirs)(nn.ParameterList(own), **options)

        def step(self) -> None:
            loss = torch.stack([(each * each.grad.clone()).sum() for each in self._own]).sum()
            for each in self._own:
                each.grad = None
            self._made.fused_backward(loss, self.param_groups[0]["lr"])

    agree(build, name, values, Fused, MATRICES + VECTORS, dtype=torch.float32)


def test_adalomo_keeps_squares_of_each_matrix_of_several(build: Any) -> None:
    """Fused experts: three matrices in one tensor have the moments that they have alone."""
    steps = [torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]

    def moments(weight: Tensor, gradients: list[Tensor]) -> dict[str, Tensor]:
        parameter = nn.Parameter(weight)
        optimizer = build("adalomo", {}, [{"params": [parameter]}])
        for gradient in gradients:
            parameter.grad = gradient
            optimizer.step()
        return dict(optimizer.state[parameter])

    together = moments(torch.ones(3, 5, 4), steps)
    for number in range(3):
        alone = moments(torch.ones(5, 4), [step[number] for step in steps])
        for key in ("row_avg_sq", "col_avg_sq"):
            torch.testing.assert_close(together[key][number], alone[key])


def test_muon_is_that_of_torch_for_matrices_and_adamw_for_the_rest(build: Any) -> None:
    values = {"weight_decay": 0.2, "momentum": 0.9, "nesterov": False, "beta1": 0.8, "beta2": 0.9}
    muon = {"weight_decay": 0.2, "momentum": 0.9, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}
    adamw = {"betas": (0.8, 0.9), "weight_decay": 0.2}
    agree(build, "muon", values, lambda own: torch.optim.Muon(own, **muon), MATRICES, transformed=True)
    agree(build, "muon", values, lambda own: torch.optim.AdamW(own, **adamw), MATRICES + VECTORS, transformed=False)


def formula(build: Any, name: str, values: dict[str, Any], change: Callable[..., Tensor]) -> None:
    """``change(weight, corrected mean, corrected squares, rate)`` is the update of a step."""
    shapes = MATRICES + VECTORS
    mine, expected, steps = weights(shapes), [each.detach().clone() for each in weights(shapes)], gradients(shapes)
    take_steps(build(name, {**ADAM, **values}, [{"params": mine}]), mine, steps)
    means, squares = ([torch.zeros_like(each) for each in expected] for _ in range(2))
    for t, (rate, step) in enumerate(zip(RATES, steps, strict=True), start=1):
        for i, gradient in enumerate(step):
            means[i] = 0.8 * means[i] + 0.2 * gradient
            squares[i] = 0.95 * squares[i] + 0.05 * gradient**2
            expected[i] = expected[i] - change(expected[i], means[i] / (1 - 0.8**t), squares[i] / (1 - 0.95**t), rate)
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-6, atol=1e-9)


def test_lamb_is_algorithm_2_of_its_paper(build: Any) -> None:
    def change(weight: Tensor, mean: Tensor, square: Tensor, rate: float) -> Tensor:
        direction = mean / (square.sqrt() + 1e-6) + 0.1 * weight
        return rate * min(float(weight.norm()), 2.0) / float(direction.norm()) * direction

    formula(build, "lamb", {"weight_decay": 0.1, "max_norm": 2.0}, change)


def test_adam_mini_divides_a_row_by_the_mean_of_its_squares(build: Any) -> None:
    """The mean of the squares' running means is the running mean of the squares' mean."""

    def change(weight: Tensor, mean: Tensor, square: Tensor, rate: float) -> Tensor:
        row = square.mean(dim=-1, keepdim=True)
        return rate * (mean / (row.sqrt() + 1e-6)) + rate * 0.1 * weight

    formula(build, "adam-mini", {"weight_decay": 0.1}, change)


def test_adam_mini_divides_rows_of_fused_experts_as_those_of_each_expert_alone(build: Any) -> None:
    """The gradients of the second expert are a thousand times smaller, and its steps as long as they would be alone."""
    scales = torch.tensor([1.0, 1e-3, 30.0])[:, None, None]
    gradient = scales * torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    gradient[0, 0] *= 1e-3

    def step(gradient: Tensor) -> Tensor:
        weight = nn.Parameter(torch.zeros(gradient.shape))
        weight.grad = gradient
        build("adam-mini", {"weight_decay": 0.0}, [{"params": [weight]}]).step()
        return weight.detach()

    torch.testing.assert_close(step(gradient), torch.stack([step(each) for each in gradient]))


@pytest.mark.parametrize("name", ["badam", "lisa"])
def test_blocks_that_are_always_on_are_adamws(build: Any, name: str) -> None:
    values = {**ADAM, "weight_decay": 0.1, "switch_steps": 100}
    options = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    agree(build, name, values, lambda own: torch.optim.AdamW(own, **options), MATRICES + VECTORS, block=None)


def moved_blocks(build: Any, name: str, values: dict[str, Any], *, begun: int = 0) -> list[list[Any]]:
    """For each of twelve steps, behind those that were ``begun``, the blocks whose weights changed, of blocks 0, 1, 2 and none."""
    own = {block: nn.Parameter(torch.ones(3)) for block in (0, 1, 2, None)}
    groups = [{"name": str(block), "params": [weight], "block": block} for block, weight in own.items()]
    optimizer, steps = build(name, values, groups), []
    for weight in own.values() if begun else ():
        optimizer.state[weight]["step"] = torch.tensor(float(begun))
    for _ in range(12):
        before = {block: weight.detach().clone() for block, weight in own.items()}
        for weight in own.values():
            weight.grad = torch.ones(3)
        optimizer.step()
        steps.append([block for block, weight in own.items() if not torch.equal(weight, before[block])])
        kept = [block for block, weight in own.items() if "exp_avg" in optimizer.state[weight]]
        assert kept == steps[-1], "only what is trained has moments"
    return steps


def test_badam_trains_one_block_after_the_other(build: Any) -> None:
    assert moved_blocks(build, "badam", {"switch_steps": 3}) == [[2]] * 3 + [[1]] * 3 + [[0]] * 3 + [[None]] * 3


def test_blocks_take_turns_beyond_the_steps_that_float32_counts(build: Any) -> None:
    """From step 16,777,216 on, one more made no other number, and one block was trained for good."""
    steps = moved_blocks(build, "badam", {"switch_steps": 3}, begun=2**24 - 4)
    assert steps == [[2]] * 3 + [[1]] * 3 + [[0]] * 3 + [[None]] * 3


def test_lisa_draws_blocks_and_always_trains_what_is_in_none(build: Any) -> None:
    steps = moved_blocks(build, "lisa", {"switch_steps": 2, "active": 2})
    assert all(len(step) == 3 and None in step for step in steps)
    assert [steps[i] for i in range(0, 12, 2)] == [steps[i] for i in range(1, 12, 2)]
    assert len({str(step) for step in steps}) > 1
    assert steps != moved_blocks(build, "lisa", {"switch_steps": 2, "active": 2, "seed": 1})


def test_eight_bits_stay_near_adamw(build: Any) -> None:
    pytest.importorskip("bitsandbytes")
    start = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    values = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1}
    own = build("adamw-8bit", values, [{"params": [mine]}])
    other = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        mine.grad = torch.randn(128, 128, generator=generator)
        theirs.grad = mine.grad.clone()
        own.step()
        other.step()
    assert own.state[mine]["state1"].dtype == torch.uint8
    apart, way = (mine - theirs).detach(), (theirs - start).detach()
    assert apart.norm() < 0.1 * way.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="paged memory is CUDA's")
@pytest.mark.parametrize(("name", "near"), [("paged-adamw", 1e-5), ("paged-adamw-8bit", 0.1)])
def test_paged_state_stays_near_adamw(build: Any, name: str, near: float) -> None:
    pytest.importorskip("bitsandbytes")
    start = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).cuda()
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = build(name, {"lr": 1e-2, "beta2": 0.95, "weight_decay": 0.1}, [{"params": [mine]}])
    other = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(10):
        mine.grad = torch.randn_like(start)
        theirs.grad = mine.grad.clone()
        own.step()
        other.step()
    apart, way = (mine - theirs).detach(), (theirs - start).detach()
    assert apart.norm() < near * way.norm()
