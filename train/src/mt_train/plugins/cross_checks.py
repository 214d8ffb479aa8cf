"""Faults that no single config can know: what two sections, or two components of a run, say of each other.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from mt_core.components import AdapterComponent
from mt_core.config.base import Layout
from mt_core.errors import ComponentError, UsageError
from mt_core.kinds import CORE_KINDS, Kind
from mt_core.plugins.metadata import canonicalize
from mt_core.warmup import WarmupOptions, peak_update
from mt_train.config.run import SlotRef
from mt_train.plugins.draft import Draft


def check_together(draft: Draft) -> None:
    """Report each such fault to the draft, whose slots and sections are all filled."""
    _check_lengths(draft)
    _check_schedule(draft)
    _check_wishes(draft)
    _check_limits(draft)
    _check_quantized_base(draft)


def _check_lengths(draft: Draft) -> None:
    train, model = draft.values["train"], draft.values["model"].options
    data = draft.values["data"]
    if train.sequence_len > model.max_seq_len:
        draft.fault(
            "train.sequence-len",
            f"{train.sequence_len} tokens exceed the model's max_seq_len of {model.max_seq_len}.",
            f"Set --train.sequence-len {model.max_seq_len} or less.",
        )
    if data.max_len > train.sequence_len:
        draft.fault(
            "data.max-len",
            f"{data.max_len} tokens exceed a row of train.sequence_len={train.sequence_len}.",
            f"Set --data.max-len {train.sequence_len} or less.",
        )
    dataset = draft.values["dataset"]
    if isinstance(data.eval, str) and "path" not in type(dataset.options).model_fields:
        draft.fault(
            "data.eval",
            f"{data.eval!r} is a path, and dataset {dataset.name} has no option path that it could stand for.",
            "Set --data.eval to a share below 1, a number of rows or none.",
        )


def _check_schedule(draft: Draft) -> None:
    """Report a schedule that does not fit into a run whose steps are known, as building it says: no schedule needs torch for that."""
    options, steps = draft.values["schedule"].options, draft.values["train"].steps
    if steps is None or not draft.trains or not isinstance(options, WarmupOptions):
        return
    try:
        peak_update(options, steps)
        if not draft.parts.get("schedule") and not draft.uses.get("schedule"):
            draft.offers["schedule"].component.build(options, total_steps=steps)
    except UsageError as error:
        option, _, problem = str(error).partition("=")  # as a schedule names what does not fit
        if option.removeprefix("schedule.") in type(options).model_fields:
            draft.fault(option, f"{problem}.")
        else:
            draft.fault("schedule", f"{error}.")


def _check_wishes(draft: Draft) -> None:
    """Report what a component requires and the run lacks, and what it conflicts with and the run has."""
    chosen = {
        f"{canonicalize(offer.kind)}:{canonicalize(name)}"
        for offer in draft.offers.values()
        for name in (offer.component.name, offer.qualified_name)
    }
    untrained = set() if draft.trains else {f"adapter:{CORE_KINDS['adapter'].default}"}  # no adapter is named there
    for offer in draft.offers.values():
        here = f"{offer.kind} {offer.component.name}"
        for needed in offer.component.requires:
            if canonicalize(needed) not in chosen:
                draft.fault(offer.kind, f"{here} requires {needed}, which this run does not have.", f"Choose {needed}.")
        for enemy in offer.component.conflicts:
            if canonicalize(enemy) in chosen - untrained:
                draft.fault(
                    offer.kind, f"{here} conflicts with {enemy}.", "Choose another in the place of one of them."
                )


def _check_limits(draft: Draft) -> None:
    """Refuse what a chosen component cannot do with its config (``Component.limits``); layouts are the plan's.

    Raises ``ComponentError`` for a limit that is neither: nobody would read it.
    """
    known_layouts = frozenset(get_args(Layout))
    adapter, quantizer = draft.offers["adapter"].component.name, draft.offers["quantizer"].component.name
    optimizer, objective = draft.offers["optimizer"].component, draft.offers["objective"].component
    loss_option, instead_of_loss = _reader_of_loss(
        draft, objective.run_defaults.get("checkpoint.best", "another figure")
    )
    used = {
        "packing": (draft.values["data"].batching == "packing", "data.batching", "padding"),
        "compile": (draft.values["train"].compile, "train.compile", "false"),
        "adapters": (adapter != CORE_KINDS["adapter"].default, "adapter", CORE_KINDS["adapter"].default),
        "quantizer": (quantizer != CORE_KINDS["quantizer"].default, "quantizer", CORE_KINDS["quantizer"].default),
        "background": (draft.values["checkpoint"].background, "checkpoint.background", "false"),
        "fused": (getattr(optimizer, "form", "") == "fused", "optimizer", CORE_KINDS["optimizer"].default),
        "no-held-out": (draft.trains and not draft.values["data"].eval, "data.eval", "0.05"),
        "eval-loss": (draft.trains and bool(loss_option), loss_option, instead_of_loss),
        "no-samples": (draft.trains and not draft.values["eval"].samples, "eval.samples", "1 or more"),
    }
    chosen = [("model", draft.values["model"]), *((place, each) for _, place, each in chosen_components(draft))]
    for place, reference in chosen:
        component = draft.offers[place].component
        if component.limits is None:
            continue
        for key, reason in component.limits(reference.options).items():
            if key in known_layouts:
                continue
            if key not in used:
                raise ComponentError(
                    f"{component.name!r} limits {key}, which is nothing that a run can ask for; known are"
                    f" {', '.join(sorted({*used, *known_layouts}))}"
                )
            is_used, option, instead = used[key]
            if is_used:
                fix = f"Set --{option} {instead}."
                draft.fault(option, f"{component.name} does not do this here: {reason}.", fix)


def _reader_of_loss(draft: Draft, instead: str) -> tuple[str, str]:
    """Return the option that decides by the loss of held-out rows, which is empty where none does, and its value by another figure."""
    for each in draft.values["callbacks"] or ():
        if getattr(each.options, "metric", None) == "eval_loss":
            name = f"callbacks.{each.name}"
            figure, _, mode = instead.partition(":")
            return f"{name}.metric", f"{figure} --{name}.mode {mode}" if mode else figure
    return "checkpoint.best" if draft.values["checkpoint"].best.startswith("eval_loss:") else "", instead


def _check_quantized_base(draft: Draft) -> None:
    adapter, quantizer = draft.offers["adapter"].component, draft.offers["quantizer"].component
    if (
        quantizer.name != CORE_KINDS["quantizer"].default
        and isinstance(adapter, AdapterComponent)
        and not adapter.on_quantized
    ):
        problem = f"{adapter.name} does not work on a quantized base"
        draft.fault("adapter", f"{problem}, and the quantizer is {quantizer.name}.", "Choose another adapter, or none.")


def chosen_components(draft: Draft) -> Iterator[tuple[Kind, str, SlotRef]]:
    """Yield kind, place among the offers, and choice of each component that the run names; the model is data."""
    for kind in draft.host.kinds.values():
        value = draft.values.get(kind.key)
        if kind.slot == "one" and kind.name != "model" and value is not None:
            yield kind, kind.name, value
        elif kind.slot == "many":
            yield from ((kind, f"{kind.name}:{each.name}", each) for each in value or ())
