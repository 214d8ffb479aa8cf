"""A component's limits are refused on paper where the run asks for what they name, and a limit of nothing is a fault of its plugin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mt_conformance import hermetic_host, tiny
from mt_core import ComponentError, ConfigError, MtConfig
from mt_core.plugins.host import Offer, PluginHost
from mt_train.plugins.resolve import resolve


def check(limits: dict[str, str], **run: Any) -> None:
    host = hermetic_host(tiny)

    def limited(offer: Offer) -> Offer:
        if offer.component.name != "kit-tiny" or not hasattr(offer.component, "limits"):
            return offer
        return replace(offer, component=replace(offer.component, limits=lambda config: limits))

    plugins = [replace(each, offers=[limited(offer) for offer in each.offers]) for each in host.plugins]
    resolve({"model": "kit-tiny", **run}, PluginHost(plugins, list(host.unused_names)))


@pytest.mark.parametrize("trains", [True, False])
def test_what_is_loaded_alone_has_no_conflict_with_the_adapter_that_trains_all(trains: bool) -> None:
    host = hermetic_host(tiny)

    def wishes(**wished: tuple[str, ...]) -> PluginHost:
        def changed(offer: Offer) -> Offer:
            is_it = offer.kind == "train_model" and offer.component.name == "kit-tiny"
            return replace(offer, component=replace(offer.component, **wished)) if is_it else offer

        plugins = [replace(each, offers=[changed(offer) for offer in each.offers]) for each in host.plugins]
        return PluginHost(plugins, list(host.unused_names))

    resolve({"model": "kit-tiny"}, wishes(requires=("adapter:full",)), trains=trains)
    against = wishes(conflicts=("adapter:full",))
    if trains:
        with pytest.raises(ConfigError, match="kit-tiny conflicts with adapter:full"):
            resolve({"model": "kit-tiny"}, against)
    else:
        resolve({"model": "kit-tiny"}, against, trains=False)


def test_a_limit_is_refused_with_its_reason_where_the_run_asks_for_it() -> None:
    with pytest.raises(
        ConfigError, match=r"kit-tiny does not do this here: it has a state. Set --data.batching padding."
    ):
        check({"packing": "it has a state"}, data={"batching": "packing"})
    check({"packing": "it has a state"}, data={"batching": "padding"})


def test_a_limit_that_nothing_reads_is_a_fault_of_the_plugin() -> None:
    with pytest.raises(
        ComponentError, match=r"'kit-tiny' limits pakcing, which .*adapters, background, compile.*packing.*zero3"
    ):
        check({"pakcing": "it has a state"})


def test_limits_of_layouts_are_left_to_the_plan() -> None:
    check({"pipeline": "it is one block", "expert": "it has none"})


def test_a_config_that_cannot_be_built_is_a_fault_of_the_plugin() -> None:
    class Clock:
        """Nothing that pydantic knows."""

    class Timed(MtConfig):
        clock: Clock = None  # type: ignore[assignment]

    def timed(offer: Offer) -> Offer:
        return replace(offer, component=replace(offer.component, config=Timed)) if offer.kind == "model" else offer

    plugins = [replace(each, offers=[timed(offer) for offer in each.offers]) for each in hermetic_host(tiny).plugins]
    with pytest.raises(ComponentError, match=r"Timed cannot be built: Unable to generate .*Clock"):
        resolve({"model": "kit-tiny"}, PluginHost(plugins, []))


@pytest.mark.parametrize("schedule", [{"warmup_steps": 3}, {"hold_steps": 2, "warmup_steps": 1}])
def test_a_warmup_that_leaves_nothing_of_the_run_is_refused_with_the_config(schedule: dict[str, int]) -> None:
    run = {"schedule": {"name": "constant", **schedule}}
    with pytest.raises(
        ConfigError, match=r"^schedule.warmup-steps: \d leaves nothing of a run of 4 updates; set it to \d at most"
    ):
        check({}, train={"steps": 4}, **run)
    check({}, train={"steps": 5}, **run)
    check({}, train={"epochs": 1}, **run)
