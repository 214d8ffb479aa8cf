"""A family as the checks of a model need it: its size, its model with values, its layers, a small run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mt_conformance import trainer
from mt_conformance.forward import rows_of
from mt_conformance.layouts import LayoutConformance, small_run
from mt_conformance.weights import fill_weights
from mt_core.components import ModelFamily
from mt_core.nn import Batch, Experts, LayerSpec, TrainModel
from mt_core.plugins.host import Offer, PluginHost


class FamilyConformance(LayoutConformance):
    """Family that is tested. The checks are in ``BaseModelConformance``."""

    kind = "model"
    variant: str = ""

    def values_in(self, host: PluginHost, folder: Path) -> Mapping[str, Any]:
        family = self.component(host)
        assert isinstance(family, ModelFamily), "the host checks what mt_model_configs returns"
        size = self.variant or family.default_variant
        assert size in family.variants, (
            f"variant = {size!r} is no size of {self.name!r}; sizes: {', '.join(family.variants)}"
        )
        return {**family.variants[size], **super().values_in(host, folder)}

    def model(self, host: PluginHost, folder: Path, *, seed: int = 0, wide: bool = True) -> TrainModel:
        """Build the model with values, ready to be trained."""
        made = self.train_model(host).component.build(self.config(host, folder))
        assert isinstance(made, TrainModel), (
            f"build returned a {type(made).__name__}; the model of mt_train_models has to be an mt_core.nn.TrainModel"
        )
        check_layers(made)
        return fill_weights(made, seed=seed, wide=wide)

    def train_model(self, host: PluginHost) -> Offer:
        """Return the offer that builds the model. Raises ``AssertionError`` where the family has only a config."""
        offers = {offer.component.name: offer for offer in host.plugins[-1].offers if offer.kind == "train_model"}
        assert self.name in offers, (
            f"mt_model_configs offers {self.name!r} and mt_train_models offers {sorted(offers) or 'nothing'}; offer a component"
            " of the same name there, whose build(config) returns the model"
        )
        return offers[self.name]

    def batch(self, model: TrainModel, *lengths: int, rows: int = 1) -> Batch:
        """Rows of documents of these lengths, drawn at random."""
        ids_BT = torch.randint(
            0, model.config.vocab_size, (rows, sum(lengths)), generator=torch.Generator().manual_seed(1)
        )
        return rows_of(ids_BT, *lengths)

    def length(self, host: PluginHost, folder: Path) -> int:
        """Tokens of a row: 30, or fewer where the model is made for fewer."""
        return min(30, int(self.config(host, folder).max_seq_len))

    def run(self, host: PluginHost, folder: Path) -> dict[str, Any]:
        values = self.values_in(host, folder)
        length = min(32, int(self.config(host, folder).max_seq_len))
        raw = small_run(model={"name": self.name, **values})
        raw["train"]["sequence_len"] = length
        return raw

    def layouts(self, host: PluginHost) -> list[str]:
        own = self.train_model(host).component.layouts
        divides = "expert" in own and getattr(self.config(host, Path()), "n_experts", None)
        return [*(each for each in super().layouts(host) if each in own), *(["expert"] if divides else [])]

    def pipeline_layers(self, host: PluginHost, folder: Path, model: TrainModel) -> Sequence[LayerSpec]:
        """Return the layers that the plugin offers, or the model's own."""
        for offer in host.plugins[-1].offers:
            if offer.kind == "pipeline_layers" and offer.component.name == self.name:
                return list(offer.component.build(self.config(host, folder)))
        return trainer.derived_layers(model)


def check_layers(model: TrainModel) -> None:
    """Raise ``AssertionError`` for layers with another path than they have in the model, and for projections that are not there."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in model.layers():
        assert modules.get(layer.prefix) is layer.module, (
            f"layers() gives {layer.prefix!r}, and the model has"
            f" {'another module' if layer.prefix in modules else 'nothing'} there; a prefix"
            f" is the path of the layer's attribute, such as {next(iter(model.named_children()))[0]!r}"
        )
    inside = {
        f"{layer.prefix}.{name}"
        for layer in model.layers()
        for name, _ in layer.module.named_parameters(remove_duplicate=False)
    }
    lost = sorted({name for name, _ in model.named_parameters(remove_duplicate=False)} - inside)
    assert not lost, (
        f"{lost[0]} is in no layer of layers(), which runs in a forward; give embedding, blocks, final norm and head"
    )
    names = [*modules, *(name for name, _ in model.named_parameters())]
    is_mixture = any(isinstance(each, Experts) for each in modules.values())  # whose experts may be one tensor
    lost = [each for each in model.default_targets if not any(_ends_so(name, each) for name in names)]
    assert is_mixture or not lost, (
        f"default_targets names {lost[0]!r}, and no module ends so; an adapter would leave it out. Modules: "
        + ", ".join(sorted({name.rpartition(".")[2] for name, each in modules.items() if not list(each.children())}))
    )


def _ends_so(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
