"""Several adapters on one live model, beside peft's ``set_adapter`` and ``add_weighted_adapter``.

Tolerance 1e-5 on values of about 1: a weight is added up in fp32 here, and outputs there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import peft
import pytest
import torch
from torch import Tensor, nn

from mt_core import Adapter, LowRankConfig, UsageError, WeightsError
from mt_core.adapters import LinearAdapter, LoraLinear, Place, merge, unmerge
from mt_core.nn import Layer, TrainModel
from mt_plugin_standard.lora import Lora
from mt_train import SeveralAdapters

RANKS = {"a": 4, "b": 3, "c": 2}


class Pair(TrainModel):
    """Two linear layers and a head."""

    default_targets = ("up", "down")

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.last = nn.Linear(8, 12), nn.Linear(12, 8, bias=False), nn.Linear(8, 5)

    def layers(self) -> Sequence[Layer]:
        return [Layer(name, getattr(self, name)) for name in ("up", "down", "last")]

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.last(self.down(torch.tanh(self.up(x))))  # type: ignore[no-any-return]


class PlainPart(nn.Module):
    """The same for peft, which knows nothing of the rest."""

    def __init__(self, model: Pair) -> None:
        super().__init__()
        self.up, self.down, self.last = nn.Linear(8, 12), nn.Linear(12, 8, bias=False), nn.Linear(8, 5)
        self.load_state_dict(model.state_dict())

    forward = Pair.forward


class RewritingPart(LinearAdapter[LowRankConfig]):
    """Stands for PiSSA and its kind: the base's weights are among its own values."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        return LoraLinear.of(base, place, self.config)


class UpAlone(LinearAdapter[LowRankConfig]):
    """Does not fit the second layer, which it sees once the first has been replaced."""

    def layer(self, base: nn.Module, place: Place) -> LoraLinear:
        if place.name == "down":
            raise UsageError("no number of blocks divides the inputs of down")
        return LoraLinear.of(base, place, self.config)


class Elsewhere(Adapter):
    """Trains the head itself."""

    def inject(self, model: TrainModel) -> None:
        """Nothing."""

    def trainable_parameters(self, model: TrainModel) -> list[str]:
        return ["last.weight"]


def lora(name: str) -> Lora:
    return Lora(LowRankConfig(rank=RANKS[name], alpha=6.0, rslora=name == "b"))


def values(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(ord(name))
    shapes = {"up": (12, 8), "down": (8, 12)}
    found = {}
    for layer, (outputs, inputs) in shapes.items():
        found[f"{layer}.lora_A"] = torch.randn(RANKS[name], inputs, generator=generator)
        found[f"{layer}.lora_B"] = 0.3 * torch.randn(outputs, RANKS[name], generator=generator)
    return found


def theirs(model: Pair) -> peft.PeftModel:
    """peft's model with the same adapters."""
    configs = {
        name: peft.LoraConfig(r=rank, lora_alpha=6, use_rslora=name == "b", target_modules=["up", "down"])
        for name, rank in RANKS.items()
    }
    found = peft.PeftModel(PlainPart(model), configs["a"], adapter_name="a")
    for name in ("b", "c"):
        found.add_adapter(name, configs[name])
    own = dict(found.named_parameters())
    with torch.no_grad():
        for name in RANKS:
            for key, value in values(name).items():
                layer, _, part = key.partition(".")
                own[f"base_model.model.{layer}.{part}.{name}.weight"].copy_(value)
    return found.eval()


@pytest.fixture
def model() -> Pair:
    torch.manual_seed(0)
    return Pair().eval()


@pytest.fixture
def several_adapters(model: Pair) -> SeveralAdapters:
    found = SeveralAdapters(model)
    for name in RANKS:
        found.add(name, lora(name), values(name))
    return found


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_switching_gives_what_peft_gives_and_none_gives_the_base(
    model: Pair, several_adapters: SeveralAdapters, x: Tensor
) -> None:
    base = Pair().eval()
    base.load_state_dict(model.state_dict())
    other = theirs(base)
    with torch.no_grad():
        assert torch.equal(model(x), base(x)), "nothing counts before use()"
        for name in RANKS:
            several_adapters.use(name)
            other.set_adapter(name)
            close(model(x), other(x))
            assert not torch.allclose(model(x), base(x))
        several_adapters.use(None)
        assert torch.equal(model(x), base(x))


def test_shares_give_what_pefts_cat_gives(model: Pair, several_adapters: SeveralAdapters, x: Tensor) -> None:
    shares = {"a": 0.7, "b": 0.3, "c": 1.0}
    base = Pair().eval()
    base.load_state_dict(model.state_dict())
    other = theirs(base)
    other.add_weighted_adapter(list(shares), list(shares.values()), "sum", combination_type="cat")
    other.set_adapter("sum")
    several_adapters.use(shares)
    with torch.no_grad():
        close(model(x), other(x))


def test_one_adapter_weighed_is_what_pefts_linear_gives(
    model: Pair, several_adapters: SeveralAdapters, x: Tensor
) -> None:
    base = Pair().eval()
    base.load_state_dict(model.state_dict())
    other = theirs(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.add_weighted_adapter(["a"], [0.4], "less", combination_type="linear")
    other.set_adapter("less")
    several_adapters.use({"a": 0.4})
    with torch.no_grad():
        close(model(x), other(x))


@pytest.mark.parametrize("shares", [{"a": 1.0}, {"a": 0.7, "b": -0.3}, {"a": 1.0, "b": 1.0, "c": 1.0}])
def test_the_output_is_that_of_the_merged_weights_and_unmerging_restores_bits(
    model: Pair, several_adapters: SeveralAdapters, x: Tensor, shares: dict[str, float]
) -> None:
    before = model.up.weight.clone()
    several_adapters.use(shares)
    with torch.no_grad():
        apart = model(x)
        merge(model)
        close(model(x), apart)
        assert not torch.equal(model.up.weight, before)
        with pytest.raises(UsageError, match=r"unmerge\(model\) first"):
            several_adapters.use("a")
        unmerge(model)
        assert torch.equal(model.up.weight, before)
        assert torch.equal(model(x), apart)


def test_where_one_layer_cannot_be_merged_none_is(
    model: Pair, several_adapters: SeveralAdapters, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses() -> Tensor:
        raise UsageError("no weight does the same")

    several_adapters.use("a")
    with torch.no_grad():
        before = model(x)
        monkeypatch.setattr(model.down, "merged_weight", refuses)
        with pytest.raises(UsageError, match="no weight does the same"):
            merge(model)
        assert torch.equal(model(x), before)
        with pytest.raises(UsageError, match=r"not merged; merge\(model\) first"):
            unmerge(model)


def test_an_adapter_that_rewrites_the_base_brings_its_own_and_leaves_that_of_the_others(model: Pair, x: Tensor) -> None:
    rewritten = {"up.weight": torch.randn(12, 8), "up.bias": torch.randn(12), "down.weight": torch.randn(8, 12)}
    alone = Pair().eval()
    alone.load_state_dict(model.state_dict() | rewritten)
    single = SeveralAdapters(alone)
    single.add("a", lora("a"), values("a"))
    single.use("a")
    with torch.no_grad():
        base = model(x)
    several = SeveralAdapters(model)
    several.add("a", RewritingPart(LowRankConfig(rank=4, alpha=6.0)), values("a") | rewritten)
    with torch.no_grad():
        several.use("a")
        close(model(x), alone(x))
        several.use({"a": 0.0})
        close(model(x), base)


def test_a_first_adapter_that_fits_one_layer_alone_leaves_the_model_as_it_was(model: Pair, x: Tensor) -> None:
    several, before = SeveralAdapters(model), model(x)
    with pytest.raises(UsageError, match="no number of blocks"):
        several.add("d", UpAlone(LowRankConfig()), {})
    assert type(model.up) is nn.Linear
    assert torch.equal(model(x), before)


def test_adapters_go_where_the_model_goes(model: Pair, several_adapters: SeveralAdapters, x: Tensor) -> None:
    several_adapters.use({"a": 0.5, "b": 0.5})
    with torch.no_grad():
        single = model(x)
        torch.testing.assert_close(model.double()(x.double()), single.double(), atol=1e-5, rtol=1e-5)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Pair().named_parameters()]


def test_what_does_not_fit_is_one_clear_message_and_leaves_the_others_as_they_were(
    model: Pair, several_adapters: SeveralAdapters, x: Tensor
) -> None:
    several_adapters.use("a")
    with torch.no_grad():
        before = model(x)
    wide = {
        name: torch.randn(9, value.shape[1]) if name.endswith("A") else value for name, value in values("a").items()
    }
    for name, adapter, tensors, error, message in (
        ("a", lora("a"), values("a"), UsageError, "there is an adapter 'a' already"),
        ("d", lora("a"), wide, WeightsError, r"up.lora_A is \(9, 8\) and has to be \(4, 8\)"),
        ("d", lora("a"), {"up.lora_A": values("a")["up.lora_A"]}, WeightsError, "up.lora_B is not given"),
        ("d", lora("a"), values("a") | {"up.gate": torch.ones(1)}, WeightsError, "up.gate has no place"),
        ("d", Elsewhere(), {}, UsageError, "has last.weight beside what it puts"),
        ("d", UpAlone(LowRankConfig()), {}, UsageError, "no number of blocks divides the inputs of down"),
    ):
        with pytest.raises(error, match=message):
            several_adapters.add(name, adapter, tensors)
    with pytest.raises(UsageError, match=r"no adapter 'd'\. There are: a, b, c"):
        several_adapters.use({"d": 1.0})
    with torch.no_grad():
        assert torch.equal(model(x), before)
    several_adapters.add("e", lora("a"), values("a"))
    several_adapters.use("e")
    with torch.no_grad():
        assert torch.equal(model(x), before)
    with pytest.raises(UsageError, match="up has an adapter already"):
        SeveralAdapters(model)
