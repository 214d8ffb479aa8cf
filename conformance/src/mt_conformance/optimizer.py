"""Conformance of an optimizer: it descends, keeps its state, and sees what it declares."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from mt_conformance.layouts import LayoutConformance
from mt_conformance.optimizer_steps import TransformOptimizer, named_parameter, take_steps
from mt_core.components import OptimizerComponent
from mt_core.config.base import MtConfig
from mt_core.plugins.host import PluginHost

RATES = (1e-2, 3e-2, 3e-2, 2e-2, 1e-2, 1e-2, 5e-3, 5e-3, 2e-3, 1e-3)
"""The rates that a schedule might set, one a step."""


class BaseOptimizerConformance(LayoutConformance):
    """Checks of an optimizer: a ``torch.optim.Optimizer`` over named groups, or a ``GradientTransform``.

    Opt-in: ``reference``, other code that takes the same steps.
    """

    kind = "optimizer"
    shapes: Mapping[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (24, 10),
        "model.layers.0.mlp.up_proj.weight": (12, 12),
        "model.layers.0.norm.weight": (7,),
        "model.layers.1.mlp.up_proj.weight": (9, 17),
        "lm_head.weight": (24, 10),
    }
    """Names and shapes of the parameters that it is tried on."""
    moves_some: bool = False
    """Whether ten steps may leave some parameters as they are, as those of a rule that trains some blocks at a time."""
    decays_vectors: bool = False
    """Whether ``split`` gives weight decay to vectors as well."""
    reference_within: float = 1e-6
    """How far a number may be from the reference after ten steps, as a share of it."""

    def reference(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
        """An optimizer over these parameters, by code that you did not write; ``None`` leaves the check out."""
        return None

    def optimizer(self, host: PluginHost, folder: Path, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer as a run does."""
        built = self.component(host).build(self.config(host, folder), groups)
        return built if isinstance(built, torch.optim.Optimizer) else TransformOptimizer(built)

    def split(self, host: PluginHost, folder: Path, named: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
        """Return the optimizer's own parameter groups."""
        component = self.component(host)
        assert isinstance(component, OptimizerComponent), "the host checks what mt_optimizers returns"
        return component.split(list(named.items()), self.config(host, folder))

    def parameters(self, dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
        """Drawn anew, always the same."""
        generator = torch.Generator().manual_seed(0)
        return {
            name: named_parameter(name, torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
            for name, shape in self.shapes.items()
        }

    def trained_parameters(
        self, host: PluginHost, folder: Path, rates: Sequence[float] = RATES
    ) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
        """Parameters after a step at each of the rates."""
        named = self.parameters()
        optimizer = self.optimizer(host, folder, self.split(host, folder, named))
        take_steps(optimizer, list(named.values()), rates)
        return named, optimizer

    def effect(self, host: PluginHost, folder: Path) -> Any:
        """Return the groups, and the parameters after ten steps."""
        named = self.parameters()
        optimizer = self.optimizer(host, folder, self.split(host, folder, named))
        rates = [group["lr"] for group in optimizer.param_groups]
        take_steps(optimizer, list(named.values()), RATES)
        return [each.detach() for each in named.values()], rates

    def test_every_parameter_is_in_exactly_one_group(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``split`` puts each parameter into one group; a parameter in no group is never trained."""
        named = self.parameters()
        groups = self.split(mt_host, tmp_path, named)
        placed = [id(parameter) for group in groups for parameter in group["params"]]
        for name, parameter in named.items():
            count = placed.count(id(parameter))
            assert count == 1, f"split puts {name} into {count} groups; each parameter belongs in exactly one"
        assert all(group.get("name") for group in groups), (
            "split returns groups without a name; logs name each group's rate"
        )

    def test_ten_steps_go_downhill(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Ten steps reduce the sum of squares of all parameters, and every number stays finite."""
        before = sum(float(each.detach().square().sum()) for each in self.parameters().values())
        named, _ = self.trained_parameters(mt_host, tmp_path)
        after = sum(float(each.detach().square().sum()) for each in named.values())
        assert after < before, (
            f"ten steps along the gradient of the sum of squares took it from {before:.4f} to {after:.4f}; an optimizer goes"
            " down, against the gradient"
        )
        still = [name for name, first in self.parameters().items() if torch.equal(named[name], first)]
        assert not still or self.moves_some, (
            f"ten steps did not change {', '.join(still[:3])}; a step updates every parameter of every group that has a gradient. A rule"
            " that leaves some out on purpose sets moves_some = True in this test"
        )

    def test_the_rate_of_a_step_is_the_one_in_its_group(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A step uses ``group["lr"]``, which the schedule sets before each step."""
        for said, slow_rates, fast_rates in (
            ("at a rate of 1e-4 and at 1e-2", [1e-4] * 4, [1e-2] * 4),
            ("whose rate is 1e-2 at first and then 1e-4, and 1e-2 throughout,", [1e-2, *[1e-4] * 3], [1e-2] * 4),
        ):
            slow, fast = (self.trained_parameters(mt_host, tmp_path, rates)[0] for rates in (slow_rates, fast_rates))
            assert any(not torch.equal(slow[name], fast[name]) for name in slow), (
                f"four steps {said} gave the same weights; read group['lr'] in every step"
            )

    def test_a_rate_of_0_changes_nothing(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """With ``group["lr"]`` 0 a step changes no parameter, not by weight decay either: a schedule may begin or end there."""
        named, _ = self.trained_parameters(mt_host, tmp_path, [0.0] * 3)
        moved = [name for name, first in self.parameters().items() if not torch.equal(named[name], first)]
        assert not moved, (
            f"three steps at a rate of 0 changed {', '.join(moved[:3])}; multiply the update by group['lr'], and weight decay as well"
        )

    def test_the_weight_decay_is_the_one_in_its_group(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A step uses ``group["weight_decay"]``, which ``split`` sets: the option's value for matrices, 0 for vectors."""
        config, found = self.config(mt_host, tmp_path), []
        if not _takes(config, weight_decay=0.5):
            pytest.skip("it has no weight decay")
        for decay in (0.0, 0.5):
            named = self.parameters()
            groups = self.split(mt_host, tmp_path, named)
            optimizer = self.optimizer(mt_host, tmp_path, [{**group, "weight_decay": decay} for group in groups])
            take_steps(optimizer, list(named.values()), RATES)
            found.append(named)
        plain, decayed = found
        assert any(not torch.equal(plain[name], decayed[name]) for name in plain), (
            "ten steps with a weight decay of 0 and of 0.5 in every group gave the same weights; read group['weight_decay'] in"
            " every step, or have no such option"
        )
        length, longer = (math.fsum(float(each.detach().square().sum()) for each in named.values()) for named in found)
        assert longer < length, (
            f"ten steps with a weight decay of 0.5 left weights with a sum of squares of {longer:.4f}, and without it {length:.4f};"
            " decay makes weights smaller: multiply by 1 - lr · weight_decay"
        )

    def test_the_decay_of_vectors_is_0(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """``split`` gives matrices the option's ``weight_decay``, and biases and norms 0. A rule that means it sets ``decays_vectors``."""
        if not _takes(self.config(mt_host, tmp_path), weight_decay=0.5):
            pytest.skip("it has no weight decay")
        named, component = self.parameters(), self.component(mt_host)
        assert isinstance(component, OptimizerComponent), "the host checks what mt_optimizers returns"
        config = self.config(mt_host, tmp_path)
        groups = component.split(list(named.items()), type(config)(**{**config.model_dump(), "weight_decay": 0.5}))
        optimizer = self.optimizer(mt_host, tmp_path, groups)
        names = {id(parameter): name for name, parameter in named.items()}
        decays = {
            names[id(each)]: group.get("weight_decay") for group in optimizer.param_groups for each in group["params"]
        }
        vectors = [name for name in decays if len(self.shapes[name]) < 2 and decays[name] != 0]
        assert self.decays_vectors or not vectors, (
            f"with weight_decay=0.5 split gives {vectors[0]}, a vector, a weight decay of {decays[vectors[0]]}; it"
            " would draw norms and biases"
            " to 0: use mt_core.split_decay, or set decays_vectors = True in this test"
        )
        assert 0.5 in decays.values(), (
            f"with weight_decay=0.5 no group has this decay ({sorted(map(str, set(decays.values())))}); split puts the"
            " option into its groups"
        )

    def test_a_parameter_without_a_gradient_is_left_alone(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """A parameter without a gradient does not change: it is frozen, or no row reached it."""
        named = self.parameters()
        optimizer = self.optimizer(mt_host, tmp_path, self.split(mt_host, tmp_path, named))
        before = {name: each.detach().clone() for name, each in named.items()}
        left = next(iter(named))
        for _ in range(2):
            for name, parameter in named.items():
                parameter.grad = None if name == left else parameter.detach().clone()
            optimizer.step()
        assert torch.equal(named[left], before[left]), (
            f"{left} has no gradient and was changed; pass over such parameters"
        )

    def test_its_state_comes_back(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Five steps, and five more from the saved state, equal ten steps bit for bit."""
        whole, _ = self.trained_parameters(mt_host, tmp_path)
        named, first = self.trained_parameters(mt_host, tmp_path, RATES[:5])
        second = self.optimizer(mt_host, tmp_path, self.split(mt_host, tmp_path, named))
        for parameter in named.values():
            if state := copy.deepcopy(dict(first.state.get(parameter, {}))):
                faults = sorted(
                    f"{key}: {type(value).__name__}" for key, value in state.items() if not _is_plain(value)
                )
                assert not faults, (
                    f"the state holds {', '.join(faults)}; a checkpoint takes tensors and numbers only, since nothing is pickled"
                )
                second.state[parameter] = state
        take_steps(second, list(named.values()), RATES[5:], first=5)
        wrong = [name for name in named if not torch.equal(named[name], whole[name])]
        assert not wrong, (
            f"five steps, and five more from their state, gave another {', '.join(wrong)} than ten steps. Keep what a step needs"
            " in optimizer.state[parameter]: a checkpoint holds that, and neither attributes nor values of groups"
        )

    def test_state_begins_with_the_first_step(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Parameters that are replaced before the first step, as an engine does with its pieces, are updated like the first ones."""
        whole, _ = self.trained_parameters(mt_host, tmp_path)
        named = self.parameters()
        optimizer = self.optimizer(mt_host, tmp_path, self.split(mt_host, tmp_path, named))
        replaced = {id(each): named_parameter(name, each.detach().clone()) for name, each in named.items()}
        for group in optimizer.param_groups:
            group["params"] = [replaced[id(each)] for each in group["params"]]
        try:
            take_steps(optimizer, list(replaced.values()), RATES)
        except (KeyError, IndexError, AttributeError) as error:
            raise AssertionError(
                f"with other parameters in its groups than it was built with, a step raised {type(error).__name__}: {error}. Make the"
                " state of a parameter in its first step: an engine replaces parameters by pieces of them"
            ) from error
        wrong = [name for name, each in named.items() if not torch.equal(replaced[id(each)], whole[name])]
        assert not wrong, (
            f"with other parameters in its groups than it was built with, ten steps gave another {', '.join(wrong[:3])}; keep nothing by"
            " the parameters of the constructor"
        )

    def test_an_elementwise_rule_does_not_see_shapes(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """An ``elementwise`` rule gives the same result on flat pieces. A rule that needs shapes declares ``whole_parameter``."""
        component = self.component(mt_host)
        assert isinstance(component, OptimizerComponent), "the host checks what mt_optimizers returns"
        if component.form != "elementwise":
            pytest.skip(f"it declares form={component.form!r}")
        whole, named = self.parameters(), self.parameters()
        pieces = {
            name: [nn.Parameter(part.clone()) for part in torch.split(each.detach().flatten(), 50)]
            for name, each in named.items()
        }
        for own, flat in ((whole, False), (named, True)):
            groups = self.split(mt_host, tmp_path, own)
            numbers = {id(parameter): name for name, parameter in own.items()}
            if flat:
                groups = [
                    {**group, "params": [part for each in group["params"] for part in pieces[numbers[id(each)]]]}
                    for group in groups
                ]
            parameters = [part for group in groups for part in group["params"]]
            take_steps(self.optimizer(mt_host, tmp_path, groups), parameters, RATES)
        for name, parameter in whole.items():
            flat_one = torch.cat([part.detach() for part in pieces[name]]).view_as(parameter)
            apart = float((parameter.detach() - flat_one).abs().max())
            assert apart <= 1e-6, (
                f"{name} in flat pieces differs by {apart:.1e} from the whole one after ten steps (allowed: 1e-6), so the rule"
                " sees shapes: declare form='whole_parameter'"
            )

    def test_it_equals_its_reference(self, mt_host: PluginHost, tmp_path: Path) -> None:
        """Optional: ten steps at changing rates equal the reference's in float64, with all parameters in one group."""
        mine, theirs = (list(self.parameters(torch.float64).values()) for _ in range(2))
        other = self.reference(theirs)
        if other is None:
            pytest.skip("opt-in: override reference(parameters) with an optimizer by other code")
        take_steps(self.optimizer(mt_host, tmp_path, [{"name": "all", "params": mine}]), mine, RATES)
        take_steps(other, theirs, RATES)
        for name, one, two in zip(self.shapes, mine, theirs, strict=True):
            apart = float(((one - two).abs() / two.abs().clamp(min=1e-3)).max().detach())
            assert apart <= self.reference_within, (
                f"after ten steps {name} is another than the reference's by {apart:.1e} (allowed: {self.reference_within:g} of"
                " each number). Compare the defaults of both: eps, betas, weight decay, bias correction"
            )


def _takes(config: MtConfig, **options: Any) -> bool:
    """Return whether it could have these values."""
    try:
        type(config)(**{**config.model_dump(), **options})
    except ValidationError:
        return False
    return True


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, Tensor | int | float | bool)
