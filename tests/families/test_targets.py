"""What an adapter takes where nobody names it: every family's own names are those of its projections, of experts as well."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from mt_core.adapters import targets_of
from mt_core.adapters.config import TargetConfig
from mt_core.nn.experts import list_experts
from mt_core.plugins.host import PluginHost

HOST = PluginHost.discover()
SIZES = [
    (offer.component.name, size)
    for offer in HOST.offers("model")
    if not getattr(offer.component, "fallback", False)
    for size in getattr(offer.component, "variants", {})
    if fnmatch(size, "*tiny*")
]


@pytest.mark.parametrize(("family", "size"), SIZES)
def test_the_names_of_a_family_are_those_of_its_projections(family: str, size: str) -> None:
    offer = HOST.get("model", family)
    config = offer.component.config(**offer.component.variants[size])
    model = HOST.get("train_model", family).component.build(config)
    list_experts(model)
    found = targets_of(model, TargetConfig())
    in_experts = [name for name, _ in model.named_modules() if fnmatch(name, "*.experts.*.*")]
    assert set(in_experts) <= set(found)
