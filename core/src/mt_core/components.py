"""Components, which plugins return: one for each thing that a run can name.

Torch is imported for type checkers only: a plugin module that imports this one stays light.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mt_core.config.base import ANY, ZERO, Layout, MtConfig
from mt_core.errors import ComponentError
from mt_core.groups import split_decay

if TYPE_CHECKING:
    from torch import Tensor, nn

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_WISH = re.compile(r"[a-z][a-z_-]*:([\w.-]+/)?[a-z][a-z0-9_-]*")
RESERVED = frozenset({"name"})
RESERVED_IN_MODEL = RESERVED | {"variant", "weights", "overlay", "adapters", "allow_missing", "allow_unexpected"}
RESERVED_IN_ADAPTER = RESERVED | {"weights"}


def identity(value: Any) -> Any:
    """The ``build`` of a component that is only data."""
    return value


def no_files(config: Any) -> Sequence[str]:
    """The ``writes`` of a component that writes nothing into a run's folder."""
    return ()


@dataclass(frozen=True, kw_only=True)
class PartChoice:
    """A component that is a part of another one, with its ``options``. An empty ``kind`` means the kind of the other component."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any], kind: str = "") -> PartChoice:
        """Return the choice that a config writes as ``{name: NAME, OPTION: VALUE, …}``."""
        return cls(name=str(given.get("name", "")), options={k: v for k, v in given.items() if k != "name"}, kind=kind)


@dataclass(frozen=True, kw_only=True)
class Component:
    """A named thing that a run can select.

    ``build`` imports torch and the rest inside, so that listing plugins stays fast; ``config`` are its options. ``summary`` is
    one line for lists, ``source`` the paper or specification. ``layouts`` are those that its tests cover: a run on another one is
    refused, as on other ``devices``. ``requires`` and ``conflicts`` are ``KIND:NAME`` (or ``KIND:DISTRIBUTION/NAME``) that the run must,
    or must not, contain. ``replaces`` names a built-in that it replaces when it is chosen as ``DISTRIBUTION/NAME``.
    ``run_defaults`` are values for keys of the run (``train.steps``) that the user has not set. ``notice`` is printed when a run uses it.

    ``parts(config)`` names other components that it needs, key of its config → ``PartChoice``; they are found, checked, locked and built
    with the run, and ``build`` gets them as ``parts``, in this order. ``uses`` are kinds whose components the *run* names: ``build`` gets,
    under the kind's key, name → built component (for a kind of which a run names one, the component or ``None``). Each is built with the
    keywords of ``build`` that its own kind has.

    ``writes(config)`` names the files and folders that it writes, as paths in the run's folder, with ``*`` and ``?``: ``--overwrite`` and
    ``--resume auto`` remove them with the other files of the run, and nothing else.
    ``limits(config)`` lists what it does not support with this config: a layout (of what a run names one), ``packing``, ``adapters``,
    ``quantizer``, ``compile``, ``background`` (saves), ``fused`` (an optimizer), ``no-samples``, ``no-held-out`` (rows) or ``eval-loss``
    (as the figure of the best checkpoint) → the reason, as half a sentence. It is called before a run.
    """

    name: str
    build: Callable[..., Any] = identity
    config: type[MtConfig] = MtConfig
    summary: str
    source: str = ""
    layouts: frozenset[Layout] = ZERO
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    replaces: str = ""
    run_defaults: Mapping[str, Any] = field(default_factory=dict)
    notice: str = ""
    parts: Callable[[Any], Mapping[str, PartChoice]] | None = None
    uses: tuple[str, ...] = ()
    writes: Callable[[Any], Sequence[str]] = no_files
    limits: Callable[[Any], Mapping[str, str]] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name.replace("_", "-")):
            raise ComponentError(
                f"{self.name!r} is not a component name; use lower-case letters, digits and '-', starting with a letter"
            )
        if not (isinstance(self.config, type) and issubclass(self.config, MtConfig)):
            raise ComponentError(
                f"the config of {self.name!r} is {self.config!r}; it must be a subclass of mt_core.MtConfig"
            )
        if unknown := self.layouts - (known := ANY | {"expert"}):
            raise ComponentError(f"{self.name!r} declares unknown layouts {sorted(unknown)}; known are {sorted(known)}")
        if bad := [each for each in (*self.requires, *self.conflicts) if not _WISH.fullmatch(each)]:
            raise ComponentError(
                f"{self.name!r} requires or conflicts with {bad[0]!r}; write KIND:NAME, as in 'optimizer:adamw'"
            )
        if taken := self.reserved_keys() & set(self.config.model_fields):
            raise ComponentError(
                f"the config of {self.name!r} declares {sorted(taken)}, which the core reserves; rename these fields"
            )

    def reserved_keys(self) -> frozenset[str]:
        """Keys of the slot that belong to the core."""
        return RESERVED


@dataclass(frozen=True, kw_only=True)
class WeightsFormat:
    """A folder or file format of weights that a family reads, and may write. ``name`` is for messages.

    ``matches(path)`` and ``values(path)`` (the config's values) run before torch is imported; ``tensors(path, config)`` maps the model's
    parameter names to functions that load one tensor each, so that the whole model is never in memory. ``exported(config)`` is the
    ``config.json`` of a Hugging Face folder; the core writes it, the tensors and the rest.
    ``written(config, loaders)`` are loaders of the tensors in such a folder, from those of the model's parameters (not of a head that an
    objective replaces); without it they have the model's names and shapes. ``special_ids(config, ids)`` are those ids of a tokenizer
    (``bos_token_id``, …) that go into ``config.json``; without it all. ``mt_core.weights`` has what families share.
    """

    name: str
    matches: Callable[[Path], bool]
    values: Callable[[Path], Mapping[str, Any]]
    tensors: Callable[[Path, Any], Mapping[str, Callable[[], Tensor]]]
    exported: Callable[[Any], Mapping[str, Any]] | None = None
    written: Callable[[Any, Mapping[str, Callable[[], Tensor]]], Mapping[str, Callable[[], Tensor]]] | None = None
    special_ids: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = lambda config, ids: ids


@dataclass(frozen=True, kw_only=True)
class ModelFamily(Component):
    """A model family: its config class and its named sizes as data.

    ``variants`` maps sizes to values of the config; ``default_variant`` is used if a run names none.
    ``variant_defaults`` are ``run_defaults`` of single sizes, for instance a learning rate. ``architectures`` are names in a
    ``config.json`` that this family reads, ``formats`` how it reads and writes weights. A ``fallback`` reads what no other family names.
    """

    variants: Mapping[str, Mapping[str, Any]]
    default_variant: str
    architectures: tuple[str, ...] = ()
    formats: tuple[WeightsFormat, ...] = ()
    variant_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fallback: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.default_variant not in self.variants:
            raise ComponentError(
                f"family {self.name!r} has default_variant={self.default_variant!r}, which is not among its variants"
                f" {sorted(self.variants)}"
            )

    def reserved_keys(self) -> frozenset[str]:
        return RESERVED_IN_MODEL


@dataclass(frozen=True, kw_only=True)
class ModelSizes(Component):
    """More sizes of a family that another distribution offers: ``name`` is the family's, ``family_of`` its distribution.

    ``variants`` and ``variant_defaults`` are as in ``ModelFamily``. ``layouts`` is not needed: the family's are used.
    """

    family_of: str
    variants: Mapping[str, Mapping[str, Any]]
    variant_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layouts: frozenset[Layout] = ANY

    @property
    def family(self) -> str:
        """``DISTRIBUTION/NAME``."""
        return f"{self.family_of}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class OptimizerComponent(Component):
    """An optimizer and its parameter-group policy.

    ``form`` says what it needs: ZeRO gives it flat one-dimensional pieces, which only ``elementwise`` rules can work with.
    ``build(config, groups)`` returns a ``torch.optim.Optimizer``, for a ``gradient_transform`` a ``GradientTransform``. One that is
    ``fused`` also has ``step_of(parameter, group)``, which is called when the parameter's gradient arrives. ``split(named parameters,
    config)`` gives the parameter groups of what no adapter has claimed.
    """

    form: Literal["elementwise", "gradient_transform", "whole_parameter", "fused"]
    split: Callable[[Sequence[tuple[str, Tensor]], Any], list[dict[str, Any]]] = split_decay


@dataclass(frozen=True, kw_only=True)
class DatasetComponent(Component):
    """A dataset that declares which files it reads, so that its tokens can be cached.

    ``files(config, split)`` is called before ``build``. The rows must depend only on the config and the content of these files. ``None``
    for ``eval`` means that there is no such split; for ``train``, that the files are unknown and nothing is cached. With ``parts``, it
    gets their files as ``parts``, in order.
    """

    files: Callable[..., Sequence[Path] | None]


@dataclass(frozen=True, kw_only=True)
class TokenizerComponent(Component):
    """A tokenizer whose config may add tokens, and with them rows of the model's embedding.

    ``size(config)`` is the number of ids with the added ones, ``None`` if the config adds none; it is called before torch is loaded. What
    is built then has ``added`` (id → ids that its text was read as before) and ``init``, how rows begin.
    """

    size: Callable[[Any], int | None]


@dataclass(frozen=True, kw_only=True)
class ObjectiveComponent(Component):
    """An objective: how a row is encoded, and its loss. ``batching`` and ``truncation`` are its defaults for the keys with these names.

    ``batch_coupled``: the loss is not a sum over independent rows, so it depends on the size of micro-batches.

    ``modules(config, width)`` builds what is trained beside the model, such as a head that gives a score, for hidden states of that
    ``width``. It becomes part of the model's head (``mt_core.nn.objective_modules`` finds it there), is drawn from the seed by its own
    ``init_tensor`` where it has one, trained under every adapter, and saved. ``head`` says what the loss calls: the ``language`` head,
    or its ``own`` modules alone, so that the language head is not trained.
    """

    modules: Callable[[Any, int], nn.Module] | None = None
    head: Literal["language", "own"] = "language"
    batch_coupled: bool = False
    batching: Literal["padding", "packing"] = "padding"
    truncation: Literal["error", "split"] = "error"


@dataclass(frozen=True, kw_only=True)
class AdapterComponent(Component):
    """An adapter: a method that trains a part of a model.

    ``mergeable``: the update can be merged into the base. ``rewrites_base``: it changes frozen weights, so checkpoints contain them.
    ``exact_at_init``: the first output is the base's. ``on_quantized``: it can adapt a quantized base, which is impossible with
    ``rewrites_base``.
    ``peft_options(config, modules)`` are its options for what peft's ``adapter_config.json`` says, ``None`` where that is another
    method; ``modules`` are the names that the file beside it has tensors for.
    """

    mergeable: bool = True
    rewrites_base: bool = False
    exact_at_init: bool = True
    on_quantized: bool = True
    peft_options: Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Any] | None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "on_quantized", self.on_quantized and not self.rewrites_base)

    def reserved_keys(self) -> frozenset[str]:
        return RESERVED_IN_ADAPTER
