"""Plugins that extend plugins, and what components require of a run or cannot stand beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mt_core.cli.plugins_report import component_report
from mt_core.cli.plugins_text import component_page
from mt_core.errors import ConfigError, UnknownComponentError
from mt_core.plugins.host import PluginHost
from mt_train.plugins.lock import lock_content
from mt_train.plugins.resolve import resolve

Hosts = Callable[..., PluginHost]
OURS = {"mt-core", "mt-plugin-standard", "mt-train"}
"""Distributions that take part in every run that names nothing else."""

FAMILY = """
from pydantic import Field
from mt_core import Component, ModelConfig, ModelFamily, hookimpl

class VerseConfig(ModelConfig):
    dim: int = Field(8, gt=0, description="width (channels)")

@hookimpl
def mt_model_configs():
    sizes = {"small": {"vocab_size": 300, "max_seq_len": 512}}
    return [ModelFamily(name="verse", config=VerseConfig, summary="a model", variants=sizes, default_variant="small")]

@hookimpl
def mt_train_models():
    return [Component(name="verse", config=VerseConfig, summary="a trainable model")]
"""

SIZES = """
from mt_core import ModelSizes, hookimpl

@hookimpl
def mt_model_configs():
    sizes = {"SIZE": {"vocab_size": 300, "max_seq_len": 512, "dim": 16}}
    defaults = {"SIZE": {"optimizer.lr": 0.5}}
    return [
        ModelSizes(name="verse", family_of="acme-family", summary="more", variants=sizes, variant_defaults=defaults)
    ]
"""

SUBCLASS = """
from pydantic import Field
from mt_core import Component, ModelFamily, hookimpl
import acme_family

class LongVerseConfig(acme_family.VerseConfig):
    stretch: float = Field(1.0, ge=1, description="factor of the longest text")

@hookimpl
def mt_model_configs():
    (family,) = acme_family.mt_model_configs()
    return [ModelFamily(name="long-verse", config=LongVerseConfig, summary="longer", variants=family.variants,
                        default_variant="small")]

@hookimpl
def mt_train_models():
    return [Component(name="long-verse", config=LongVerseConfig, summary="longer")]
"""

SCHEDULE = """
from mt_core import Component, hookimpl

@hookimpl
def mt_schedules():
    return [Component(name="NAME", summary="a schedule", FIELDS)]
"""


def schedule(name: str, **fields: Any) -> str:
    text = ", ".join(f"{key}={value!r}" for key, value in fields.items())
    return SCHEDULE.replace("NAME", name).replace("FIELDS", text)


def test_info_shows_the_sizes_that_a_plugin_adds_and_whose_family_they_are_of(hosts: Hosts) -> None:
    host = hosts(acme_family=FAMILY, acme_sizes=SIZES.replace("SIZE", "large"))
    (sizes,) = host.offers("model_sizes")
    page = "\n".join(component_page(component_report(sizes, host.kinds), 0))
    assert "more sizes of the family of: acme-family" in page
    assert "large  vocab_size 300, max_seq_len 512, dim 16" in page


def test_a_plugin_adds_sizes_to_the_family_of_another_and_takes_part_where_one_is_chosen(hosts: Hosts) -> None:
    host = hosts(acme_family=FAMILY, acme_sizes=SIZES.replace("SIZE", "large"))
    family = host.get("model", "verse")
    assert list(family.component.variants) == ["small", "large"]
    large = resolve({"model": {"name": "verse", "variant": "large"}}, host)
    assert large.config.model.options.dim == 16
    assert large.config.optimizer.options.lr == 0.5
    assert lock_content(large.offers.values())["plugins"].keys() == {"acme-family", "acme-sizes", *OURS}
    small = resolve({"model": "verse"}, host)
    assert small.config.model.options.dim == 8
    assert lock_content(small.offers.values())["plugins"].keys() == {"acme-family", *OURS}, "installed is not active"


def test_sizes_of_a_family_that_is_not_installed_wait_for_it(hosts: Hosts) -> None:
    host = hosts(acme_sizes=SIZES.replace("SIZE", "large"))
    assert {plugin.status for plugin in host.plugins} == {"loaded"}
    with pytest.raises(UnknownComponentError, match="no model named 'verse'"):
        host.get("model", "verse")


def test_a_size_that_the_family_has_makes_the_plugin_that_adds_it_fail(hosts: Hosts) -> None:
    host = hosts(acme_family=FAMILY, acme_sizes=SIZES.replace("SIZE", "small"))
    assert host.plugins[-1].error == (
        "size 'small' of acme-family/verse comes from acme-family under test and acme-sizes under test; give it another"
        " name, or block one of them"
    )
    assert host.get("model", "verse").component.variants["small"] == {"vocab_size": 300, "max_seq_len": 512}


def test_of_two_plugins_that_add_one_size_none_wins(hosts: Hosts) -> None:
    code = SIZES.replace("SIZE", "large")
    host = hosts(acme_family=FAMILY, acme_one=code, acme_two=code)
    assert [plugin.status for plugin in host.plugins[-3:]] == ["loaded", "failed", "failed"]
    assert all("acme-one under test and acme-two under test" in plugin.error for plugin in host.plugins[-2:])
    with pytest.raises(ConfigError, match="has no size 'large'"):
        resolve({"model": {"name": "verse", "variant": "large"}}, host)
    assert len(host.notices) == 2


def test_a_subclass_of_a_familys_config_is_a_family_with_new_options(hosts: Hosts) -> None:
    host = hosts(acme_family=FAMILY, acme_long=SUBCLASS)
    options = resolve({"model": {"name": "long-verse", "stretch": 2.0}}, host).config.model.options
    assert (options.stretch, options.dim) == (2.0, 8)
    with pytest.raises(ConfigError, match="stretch"):
        resolve({"model": {"name": "verse", "stretch": 2.0}}, host)


def test_a_stand_in_acts_only_when_it_is_chosen_by_its_distribution(hosts: Hosts) -> None:
    host = hosts(acme_family=FAMILY, acme_stand_in=schedule("cosine", replaces="cosine"))
    assert resolve({"model": "verse"}, host).offers["schedule"].plugin.distribution == "mt-plugin-standard"
    chosen = resolve({"model": "verse", "schedule": "acme-stand-in/cosine"}, host)
    assert chosen.offers["schedule"].plugin.distribution == "acme-stand-in"
    assert chosen.config.as_raw()["schedule"] == {"name": "acme-stand-in/cosine"}, "so that run.yaml means it, too"


@pytest.mark.parametrize(
    "needed", ["task_print:other", "task-print:other", "task-print:mt-plugin-standard/other", "optimizer:x"]
)
def test_what_a_component_requires_is_asked_for_on_paper(needed: str, hosts: Hosts) -> None:
    host = hosts(acme_family=FAMILY, acme_wants=schedule("wants", requires=(needed,)))
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "verse", "schedule": "wants"}, host)
    assert f"schedule: schedule wants requires {needed}, which this run does not have. Choose {needed}." in str(
        caught.value
    )


@pytest.mark.parametrize("needed", ["task_print:loss", "task-print:LOSS".lower(), "optimizer:mt-plugin-standard/adamw"])
def test_a_requirement_is_met_by_any_spelling_of_what_was_chosen(needed: str, hosts: Hosts) -> None:
    host = hosts(acme_family=FAMILY, acme_wants=schedule("wants", requires=(needed,)))
    assert resolve({"model": "verse", "schedule": "wants"}, host).config.schedule.name == "wants"


def test_what_a_component_conflicts_with_is_refused_on_paper(hosts: Hosts) -> None:
    code = schedule("alone", conflicts=("task-print:loss", "optimizer:mt-plugin-standard/adamw", "optimizer:other"))
    host = hosts(acme_family=FAMILY, acme_alone=code)
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "verse", "schedule": "alone"}, host)
    assert [fault.problem for fault in caught.value.faults] == [
        "schedule alone conflicts with task-print:loss.",
        "schedule alone conflicts with optimizer:mt-plugin-standard/adamw.",
    ]


def test_a_wish_that_names_no_kind_is_refused_when_the_plugin_loads(hosts: Hosts) -> None:
    error = hosts(acme_bad=schedule("bad", requires=("adamw",))).plugins[-1].error
    assert error == "'bad' requires or conflicts with 'adamw'; write KIND:NAME, as in 'optimizer:adamw'"
