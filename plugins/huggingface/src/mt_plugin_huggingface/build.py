"""Builds transformers' own model of a config, without values: they are read or drawn later, parameter by parameter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.modules.module import register_module_parameter_registration_hook

from mt_core import WeightsError, whole_shape
from mt_core.nn import BlockContext, SdpaAttention

from .attention import NAME, Rule, read_rules, register
from .config import HuggingFaceConfig
from .experts import use_experts
from .frame import Frame, mix_in
from .types import ModelType

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXPERTS = "grouped_mm"
"""Name of transformers' function for the experts that mt_core's do not run: tokens are sorted by expert, and added up in their own
order, so that two runs give the same bits."""

_SMALL = 4096
"""Largest parameter that is kept with its value (elements); a matrix of a layer has more."""

_DROPOUT = re.compile(r"dropout|pdrop|drop_path|layerdrop")


def build_language_model(config: HuggingFaceConfig) -> PreTrainedModel:
    """Build the model on the default device and in the default dtype, its head tied where the config ties it.

    Dropout and noise of routers are 0, whatever the config says: no other layout would draw the same. Buffers that files have are
    frozen parameters here, so that they are read, moved and saved as all others.
    """
    model = build_plain(config)
    dtype, rounded = model.get_input_embeddings().weight.dtype, dict[str, list[str]]()
    for name, buffer in saved_buffers(model).items():
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        del module._buffers[own]
        value = buffer.reshape(_shape(buffer))
        value = value.to(dtype) if value.is_floating_point() else value  # some compute it in fp32, under zero.Init too
        module.register_parameter(own, nn.Parameter(value, requires_grad=False))
        if buffer.is_floating_point() and not is_kept_in_fp32(model, name):
            rounded.setdefault(path, []).append(own)
    for path, names in rounded.items():
        mix_in(model.get_submodule(path), _Rounded, names=names)
    use_experts(model)
    return model


class _Rounded:
    """Computes with saved buffers in the dtype of its input, as transformers does, though the run keeps them in fp32."""

    def forward(self, *args: Any, **named: Any) -> Any:
        given = next(each for each in (*args, *named.values()) if isinstance(each, Tensor) and each.is_floating_point())
        buffers = {name: self._parameters[name].to(given.dtype) for name in self.__dict__["_names"]}  # type: ignore[attr-defined]
        self.__dict__ |= buffers  # stand before the parameters of these names
        try:
            return super().forward(*args, **named)  # type: ignore[misc]
        finally:
            for name in buffers:
                del self.__dict__[name]


def is_kept_in_fp32(model: PreTrainedModel, name: str) -> bool:
    """Return whether transformers has a parameter or buffer in fp32 in a model of fewer bits."""
    patterns = (*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ()))
    return any(re.search(each, name) for each in patterns)


def _shape(tensor: Tensor) -> torch.Size:
    """Shape of the parameter that stands for a saved buffer: DeepSpeed sends no numbers without a dimension."""
    return tensor.shape or torch.Size([1])


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that files have, by name."""
    saved = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def built_values(config: HuggingFaceConfig) -> dict[str, Tensor]:
    """Return what the constructors of modules put into saved buffers and small parameters, by name, in fp32 on the CPU: first values
    that no rule of transformers draws."""
    with _small_on_cpu(_SMALL):
        model = build_plain(config)
    found = {**saved_buffers(model), **{name: each for name, each in model.named_parameters() if not each.is_meta}}
    return {name: each.detach().reshape(_shape(each)) for name, each in found.items()}


def build_plain(config: HuggingFaceConfig) -> PreTrainedModel:
    """Build the model as transformers does, but for dropout, attention and experts: its tensors are those that files have.

    Raises ``WeightsError`` for a config that transformers makes no model of.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.initialization import no_init_weights

    register()
    content = config.content()
    plain = {key: 0.0 for key, value in content.items() if _DROPOUT.search(key) and isinstance(value, float)}
    try:
        cls = CONFIG_MAPPING[config.kind.name]
        theirs = cls.from_dict(cls._decode_special_floats({**content, **plain}))  # JSON has no infinity
        for key, value in theirs.to_dict().items():  # those that the file leaves out
            if _DROPOUT.search(key) and isinstance(value, float):
                setattr(theirs, key, 0.0)
        with no_init_weights():
            model = MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs)](theirs)
            model.tie_weights()
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        said = " ".join(str(error).split())
        raise WeightsError(
            f"transformers makes no {config.kind.name} of this config.json: {said}; correct it"
        ) from error
    _require_parts(model, config.kind)
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            module.config._attn_implementation_internal = "eager" if config.kind.own_attention else NAME
            module.config._experts_implementation_internal = EXPERTS
    return model


def _require_parts(model: PreTrainedModel, kind: ModelType) -> None:
    """Raise ``WeightsError`` for a model that lacks a layer of its type, or has another one between its norm and its head.

    OPT of 350M parameters does both: a projection stands in the place of its last norm.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    parts = (kind.embed, kind.positions, kind.blocks, kind.norm, kind.before_head, kind.head)
    lacking = [path for path in parts if path is not None and path not in modules]
    if not lacking and kind.before_head is None:
        width = whole_shape(modules[kind.head].weight)[-1]
        norms = [whole_shape(each)[-1] for each in modules[kind.norm].parameters(recurse=False)]
        lacking = [f"{kind.norm} of {width} channels" for other in norms[:1] if other != width]
    if lacking:
        raise WeightsError(
            f"transformers makes a {kind.name} without {', '.join(lacking)} of this config.json, and this family trains none without it;"
            " use other weights of this type"
        )


def true_buffers(config: HuggingFaceConfig) -> dict[str, Tensor]:
    """Return the floating-point buffers that no file has, such as the wavelengths of rotary positions, in fp32 on the CPU, by name.

    They are computed where the model is built. A build under ``zero.Init`` rounds them to the run's dtype, and so does a cast of the
    model; without them a model is wrong, and does not say so.
    """
    with _small_on_cpu():
        model = build_language_model(config)
    return {name: each for name, each in model.named_buffers() if each.is_floating_point()}


def mask_rules(config: HuggingFaceConfig) -> list[Rule]:
    """Return the rule by which the model masks the attention of each block.

    A small build of its own is asked: the tensors of the model that runs may be divided among ranks.
    """
    with unset_fake_temporarily(), torch.no_grad(), _small_on_cpu():  # a plan on paper has tensors without values
        model, kind = build_language_model(config), config.kind
        frame, positions = Frame(model, kind), torch.arange(2)[None]
        hidden = torch.zeros(1, 2, model.get_submodule(kind.embed).weight.shape[1])
        context = BlockContext(positions, torch.zeros_like(positions), SdpaAttention())
        return read_rules(model, lambda: frame.run(hidden, context))


@contextmanager
def _small_on_cpu(largest: int = 0) -> Iterator[None]:
    """Let models that are built meanwhile have values in fp32 on the CPU: buffers, and parameters of up to so many elements."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), _parameters_on_meta(largest):
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _parameters_on_meta(largest: int) -> Iterator[None]:
    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.is_meta or parameter.numel() <= largest:
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    hook = register_module_parameter_registration_hook(to_meta)
    try:
        yield
    finally:
        hook.remove()
