"""Kinds that plugins bring: what is wrong with one is told under its plugin's name, and hurts nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mt_core.errors import ConfigError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve

Hosts = Callable[..., PluginHost]

BRINGS = """
from mt_core import Kind, hookimpl

@hookimpl
def mt_kinds():
    return [Kind(FIELDS)]
"""

OFFERS = """
from mt_core import Component, MtConfig, hookimpl

class Reward(MtConfig):
    weight: float = 1.0

@hookimpl
def mt_rewards():
    return [Component(name="NAME", config=Reward, build=lambda config, **given: (config.weight, given), summary="a score" MORE)]
"""

TAKES = """
from mt_core import Component, PartChoice, hookimpl

@hookimpl
def mt_schedules():
    return [Component(name="NAME", build=lambda config, **given: given, summary="a schedule", FIELDS)]
"""


def brings(**changes: Any) -> str:
    fields = {
        "name": "reward",
        "hook": "mt_rewards",
        "slot": "many",
        "key": "rewards",
        "returns": "acme:Reward",
        "summary": "a score",
    }
    return BRINGS.replace("FIELDS", ", ".join(f"{key}={value!r}" for key, value in (fields | changes).items()))


def offers(name: str, more: str = "") -> str:
    return OFFERS.replace("NAME", name).replace("MORE", more)


def takes(name: str, fields: str = 'uses=("reward",)') -> str:
    return TAKES.replace("NAME", name).replace("FIELDS", fields)


def run(host: PluginHost, **raw: Any) -> Any:
    resolved = resolve({"model": "kit-tiny", **raw}, host)
    return resolved, Parts.of(resolved).schedule(3)


@pytest.fixture
def hosts_with_model(hosts: Hosts) -> Hosts:
    """Hosts that have a model beside what they are given."""

    def host(**plugins: str) -> PluginHost:
        return hosts(acme_model="from mt_conformance.tiny import *\n", **plugins)

    return host


def test_a_component_gets_what_the_run_names_of_a_kind_that_it_uses(hosts_with_model: Hosts) -> None:
    host = hosts_with_model(acme_brings=brings(), acme_offers=offers("length"), acme_takes=takes("rewarded"))
    assert [plugin.error for plugin in host.plugins] == [""] * len(host.plugins)
    _, given = run(host, schedule="rewarded", rewards=["length"])
    assert given == {"total_steps": 3, "rewards": {"length": (1.0, {})}}
    resolved, given = run(host, schedule="rewarded", rewards={"length": {"weight": 0.5}})
    assert given["rewards"]["length"][0] == 0.5
    assert resolve(resolved.config.as_raw(), host).config == resolved.config, "run.yaml says the same"
    _, given = run(host, schedule="rewarded")
    assert given["rewards"] == {}, "a run need not name one"


def test_a_kind_of_which_a_run_names_one_gives_that_one_or_none(hosts_with_model: Hosts) -> None:
    host = hosts_with_model(
        acme_brings=brings(slot="one", key="reward", given=("total_steps",)),
        acme_offers=offers("length"),
        acme_takes=takes("rewarded"),
    )
    resolved, given = run(host, schedule="rewarded", reward={"name": "length", "weight": 2.0})
    assert given["reward"] == (2.0, {"total_steps": 3}), "of the whole's keywords it gets those of its kind"
    assert resolve(resolved.config.as_raw(), host).config == resolved.config
    assert run(host, schedule="rewarded")[1]["reward"] is None


def test_a_part_of_another_kind_is_found_checked_and_built(hosts_with_model: Hosts) -> None:
    parts = 'parts=lambda config: {"score": PartChoice(kind="reward", name="length", options={"weight": WEIGHT})}'
    host = hosts_with_model(
        acme_brings=brings(slot="part", key=""),
        acme_offers=offers("length"),
        acme_takes=takes("made", parts.replace("WEIGHT", "3.0")),
        acme_wrong=takes("wrong", parts.replace("WEIGHT", "'x'")),
        acme_absent=takes("absent", parts.replace("length", "lenght").replace("WEIGHT", "1")),
    )
    resolved, given = run(host, schedule="made")
    assert given["parts"] == [(3.0, {})]
    assert resolved.offers["schedule.score"].bringer.distribution == "acme-brings"
    with pytest.raises(ConfigError, match=r"schedule\.score\.weight"):
        run(host, schedule="wrong")
    with pytest.raises(ConfigError, match=r"schedule\.score: no reward named 'lenght'\. Did you mean 'length'\?"):
        run(host, schedule="absent")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('uses=("rewards",)', "uses 'rewards', and no plugin that is loaded brings that kind"),
        ('uses=("train_model",)', "uses 'train_model', and a run names no train model; it is a part"),
        ('uses=("dataset",)', "build of a dataset gets split, and that of a schedule does not"),
        (
            'parts=lambda config: {"rows": PartChoice(kind="dataset", name="demo")}',
            "schedule wrong cannot be made of a dataset: build of a dataset gets split",
        ),
        (
            'parts=lambda config: {"score": PartChoice(kind="scores", name="x")}',
            "score 'x' is not available: no plugin that is loaded brings the kind 'scores'".replace(
                "score ", "scores "
            ),
        ),
    ],
)
def test_what_cannot_be_built_is_refused_on_paper(fields: str, words: str, hosts_with_model: Hosts) -> None:
    with pytest.raises(ConfigError) as raised:
        run(hosts_with_model(acme_wrong=takes("wrong", fields)), schedule="wrong")
    assert words in str(raised.value)


def test_components_that_use_each_other_are_refused(hosts_with_model: Hosts) -> None:
    host = hosts_with_model(
        acme_brings=brings(),
        acme_offers=offers("length", ', uses=("reward",)'),
        acme_takes=takes("rewarded"),
    )
    with pytest.raises(ConfigError, match="in a circle: reward → reward"):
        run(host, schedule="rewarded", rewards=["length"])


def test_what_a_run_names_for_nobody_is_refused(hosts_with_model: Hosts) -> None:
    host = hosts_with_model(acme_brings=brings(), acme_offers=offers("length"), acme_takes=takes("rewarded"))
    with pytest.raises(ConfigError) as raised:
        run(host, rewards=["length"])
    assert (
        "rewards: is named, and no component of this run takes it. Choose one that does: --schedule rewarded."
        in str(raised.value)
    )


BAD = {
    "name": (brings(name="adapter"), "it cannot bring the kind 'adapter': kind 'adapter' exists already"),
    "hook": (brings(hook="mt_datasets"), "its hook 'mt_datasets' is that of kind 'dataset'"),
    "key": (brings(key="callbacks"), "its key 'callbacks' names another kind"),
    "default": (
        brings(slot="one", key="", default="length"),
        "it has default='length', and what is installed changes no run",
    ),
    "required": (brings(slot="one", key="", required=True), "it has required=True"),
    "returned": ("from mt_core import hookimpl\n@hookimpl\ndef mt_kinds():\n    return 3\n", "mt_kinds returned a int"),
    "items": (
        "from mt_core import hookimpl\n@hookimpl\ndef mt_kinds():\n    return ['reward']\n",
        "mt_kinds returned 'reward'; every item must be a Kind",
    ),
    "unmarked": ("def mt_kinds():\n    return []\n", "mt_kinds is not marked with @mt_core.hookimpl"),
    "hookless": (offers("length"), "it implements the hook 'mt_rewards', which does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_kind_that_cannot_be_fails_with_its_plugin_alone(name: str, hosts_with_model: Hosts) -> None:
    code, words = BAD[name]
    host = hosts_with_model(acme_bad=code, acme_takes=takes("steady", ""))
    bad = next(plugin for plugin in host.plugins if plugin.info.distribution == "acme-bad")
    assert words in bad.error
    assert bad.offers == []
    assert resolve({"model": "kit-tiny", "schedule": "steady"}, host).config.schedule.name == "steady"


def test_of_two_distributions_that_bring_one_kind_none_wins(hosts_with_model: Hosts) -> None:
    host = hosts_with_model(
        acme_one=brings(), acme_two=brings(key="scores"), acme_offers=offers("length"), acme_takes=takes("x", "")
    )
    errors = {plugin.info.distribution: plugin.error for plugin in host.plugins}
    for name in ("acme-one", "acme-two"):
        assert "the kind 'reward' (hook mt_rewards, key" in errors[name]
        assert "acme-one under test and acme-two under test" in errors[name] or (
            "acme-two under test and acme-one under test" in errors[name]
        )
    assert "mt_rewards', which does not exist" in errors["acme-offers"]
    assert errors["acme-takes"] == ""
