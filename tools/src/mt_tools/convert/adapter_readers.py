"""Notes for those who open an exported adapter elsewhere: which base it names, and how servers read it. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isclose, sqrt
from pathlib import Path
from typing import Any

from mt_core.adapters.base import PeftForm
from mt_core.errors import MtError, UsageError
from mt_core.plugins.host import PluginHost
from mt_core.weights import CONFIG, check_file, read_json
from mt_tools.convert.adapter_experts import say_experts
from mt_tools.convert.source import Say, Source
from mt_train.adapters.portable import is_lora, module_of, rank_and_scale
from mt_train.plugins.resolve import resolve

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's ``--max-lora-rank`` takes (vllm/config/lora.py)."""
NAME_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
STATE_SPACE = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
"""Model types in which peft refuses ``REFUSED_BY_PEFT`` (peft/tuners/tuners_utils.py)."""
REFUSED_BY_PEFT = frozenset({"conv1d", "out_proj"})
WITHOUT_CONV1D = frozenset({"BOFT", "DELORA", "HRA", "LOHA", "LOKR", "OFT"})
"""Types of peft that refuse transformers' ``Conv1D`` (``model.py`` of each in peft/tuners)."""
_IN_CACHE = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/([^/]+)")


def base_keys(source: Source) -> dict[str, str | None]:
    """Keys of ``adapter_config.json`` that name the base: its name on the Hub, given or known, and never a path of this machine."""
    name = None if source.parts.merged else _name_of_base(source)  # weights with others merged into them have no name
    if name is None:
        return {"base_model_name_or_path": None}
    name, _, revision = name.partition("@")
    return {"base_model_name_or_path": name, **({"revision": revision} if revision else {})}


def _name_of_base(source: Source) -> str | None:
    given = source.started_from
    if source.base_name is not None or given is None:
        return source.base_name
    if cached := _IN_CACHE.search(Path(given).as_posix()):
        return "{}/{}@{}".format(*cached.groups())
    return None if _is_path(given) else given


def check_base_name(given: str) -> str:
    """Return a name on the Hub as it is. Raises ``UsageError`` for anything else."""
    if not NAME_ON_THE_HUB.fullmatch(given):
        raise UsageError(
            f"--base {given} is no name on the Hub; write ORG/NAME or ORG/NAME@REVISION: the folder goes to others, who have no path"
            " of this machine"
        )
    return given


def _is_path(given: str) -> bool:
    return Path(given).is_absolute() or given.startswith((".", "~")) or Path(given).exists() or given.count("/") != 1


def say_readers(
    source: Source, out: Path, form: PeftForm, rank: int | None, say: Say, *, transposed: bool = False
) -> None:
    """Say how the folder is served, and what of it others cannot read; ``transposed`` are layers such as GPT-2's."""
    say_merged(source, say)
    say_base(source, say)
    say_experts(source, sorted({name.rpartition(".")[0] for name in form.names}), form.config, say)
    if transposed and form.config["peft_type"] in WITHOUT_CONV1D:
        say(
            f"notice: peft opens no {form.config['peft_type']} over layers that store their weight transposed (Conv1D, as GPT-2's); it is"
            " read here, and --merge writes a model that all read"
        )
        return
    if not is_lora(form):
        say(
            f"notice: peft reads this ({form.config['peft_type']}{' with DoRA' * bool(form.config.get('use_dora'))}); vLLM, SGLang and"
            " llama.cpp take plain LoRA alone: give them --merge, or --as-lora where the change has a low rank"
        )
        return
    modules = sorted({module_of(name) for name in form.names.values()})
    say_refused_by_peft(source, modules, say)
    if missing := find_missing_in_base(source, modules):
        say(
            f"notice: the base {source.weights} has no {missing[0]}.weight"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + ": a server over it would not find what the adapter is for, and vLLM then serves the base without a word."
            " Serve it over a folder that mt-convert has written"
        )
    if rank is None:
        _say_others(form, modules, say)
        return
    _say_growth(form, modules, rank, say)
    if not source.parts.merged:
        say_vllm(source, out, rank, say)


def say_refused_by_peft(source: Source, modules: Iterable[str], say: Say) -> None:
    """Say which modules peft refuses in a model with state space layers, whose kernels read these weights without calling the module."""
    file = source.weights / CONFIG if source.weights is not None else None
    kind = read_json(file).get("model_type") if file is not None and file.is_file() else None
    refused = sorted({name.rpartition(".")[2] for name in modules} & REFUSED_BY_PEFT) if kind in STATE_SPACE else []
    if refused:
        say(
            f"notice: peft refuses a LoRA on {' and '.join(refused)} of a {kind} model; it is read here, and --merge writes a model that"
            f" all read. For peft train with --adapter.targets without {' and '.join(refused)}"
        )


def say_base(source: Source, say: Say) -> None:
    """Say that the folder names no base, where a run knows no name for it but a path."""
    if source.started_from is not None and not source.parts.merged and _name_of_base(source) is None:
        say(
            f"notice: the folder names no base, since the run has {source.started_from}, a path of this machine; --base ORG/NAME says what"
            " it is called on the Hub"
        )


def say_merged(source: Source, say: Say) -> None:
    """Say what stands between the adapter and the weights that its folder names."""
    if source.parts.merged:
        paths = ", ".join(str(each.folder.path) for each in source.parts.merged)
        say(
            f"notice: the adapter stands over weights with {paths} merged into them, not over {source.started_from} alone, so that its"
            " folder names no base; here it goes over both (--model.adapters), elsewhere --merge writes all as one model"
        )


def corrects_base(source: Source) -> bool:
    """Return whether the adapter stands for what its base has lost in fewer bits (LoftQ): it is for the base in those, and no other."""
    return source.parts.config.quantizer.name != "none" and bool(
        getattr(source.parts.adapter(), "corrects_base", False)
    )


def say_corrected_base(source: Source, say: Say) -> None:
    """Say for which base an adapter is that stands for what that has lost."""
    if corrects_base(source):
        say(
            f"notice: the adapter has what {source.parts.config.quantizer.name} has lost of the base: it is for the base in those bits, and"
            " not for its weights as they were; --merge writes both as one model"
        )


def say_changed_base(source: Source, host: PluginHost, say: Say) -> None:
    """Say which options of the model a run has set otherwise than the files of its base, as with new tokens, and what it has put on top of
    them: its adapter has none of it."""
    from mt_tools.convert.overlay import base_overlay

    if source.weights is None:
        return
    if (overlay := base_overlay(source)) is not None:
        say(
            f"notice: the adapter stands over weights of model.overlay {overlay}, not over the base's alone, and its folder has none of"
            " them; --merge writes all as one model"
        )
    model = {"name": source.parts.offers["model"].qualified_name, "weights": str(source.parts.weights_path)}
    try:
        of_files = resolve({"model": model, "train": {"sequence_len": 2}}, host).config.model.options.model_dump()
    except MtError as error:
        say(
            f"notice: the files of the base are no model without the options that the run has set ({error}); its readers need them too"
        )
        return
    of_run = source.parts.config.model.options.model_dump()
    changed = [key for key, value in of_run.items() if value != of_files[key] and "dropout" not in key]
    if changed:
        values = {
            key: "" if isinstance(of_run[key], dict) else f" ({of_run[key]}, and there {of_files[key]})"
            for key in changed
        }
        named = ", ".join(f"model.{key}{value}" for key, value in values.items())
        say(
            f"notice: the run has set {named} otherwise than the files of its base, which an adapter's folder does not say: open it over a"
            " base that has the same (mt-convert resize-vocab for tokens, config.json for others), or write the whole model (--merge)"
        )


def _say_growth(form: PeftForm, modules: Iterable[str], rank: int, say: Say) -> None:
    ranks = [rank_and_scale(form.config, module)[0] for module in modules]
    if min(ranks) < rank:
        share = 1 - sum(ranks) / (rank * len(ranks))
        say(
            f"notice: layers have ranks from {min(ranks)} to {rank}; all are filled with zeros up to {rank}, so that every server"
            f" computes the same: about {share:.0%} of the file (--form peft writes each rank as it is, which peft alone reads)"
        )


def _say_others(form: PeftForm, modules: Iterable[str], say: Say) -> None:
    if any(_is_read_otherwise(form.config, module) for module in modules):
        say(
            "notice: ranks, alphas or rsLoRA are written as peft alone reads them; vLLM, SGLang or llama.cpp would multiply some"
            " layers by another factor. For those leave --form peft out"
        )


def _is_read_otherwise(config: Mapping[str, Any], module: str) -> bool:
    """Return whether a reader multiplies a layer by another factor than peft: vLLM, SGLang, llama.cpp."""
    rank, scale = rank_and_scale(config, module)
    alpha, first = config["lora_alpha"], config["r"]
    others = (alpha / (sqrt(first) if config.get("use_rslora") else first), alpha / first, alpha / rank)
    return not all(isclose(scale, each) for each in others)


def say_vllm(source: Source, out: Path, rank: int, say: Say) -> None:
    """Say the command that serves a LoRA of this rank here, or that vLLM takes none so large."""
    base = base_keys(source)["base_model_name_or_path"] or source.started_from or "BASE"
    most = next((each for each in VLLM_RANKS if each >= rank), None)
    if most is None:
        say(f"notice: vLLM takes ranks up to {VLLM_RANKS[-1]}, and this has {rank}: give it --merge")
        return
    say(f"notice: vllm serve {base} --enable-lora --max-lora-rank {most} --lora-modules {out.name}={out}")


def find_missing_in_base(source: Source, modules: Iterable[str]) -> list[str]:
    """The modules whose weight no safetensors file of the base has; none where the base has no such files."""
    files = sorted(source.weights.glob("*.safetensors")) if source.weights is not None else []
    names = {name for file in files for name in check_file(file)}
    return [module for module in modules if names and f"{module}.weight" not in names]
