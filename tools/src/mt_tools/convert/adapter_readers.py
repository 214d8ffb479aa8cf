"""Notes for those who open an exported adapter elsewhere: which base it names, and how servers read it. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isclose, sqrt
from pathlib import Path
from typing import Any

from mt_core.adapters.base import PeftForm
from mt_core.weights import check_file
from mt_tools.convert.source import Say, Source
from mt_train.adapters.portable import is_lora, module_of, rank_and_scale

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM's ``--max-lora-rank`` takes (vllm/config/lora.py)."""
_IN_CACHE = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/([^/]+)")


def base_keys(source: Source) -> dict[str, str | None]:
    """Keys of ``adapter_config.json`` that name the base: its name on the Hub where it has one, else what the run was given."""
    given = source.started_from
    if given is None or source.parts.merged:  # weights with others merged into them have no name
        return {"base_model_name_or_path": None}
    if cached := _IN_CACHE.search(Path(given).as_posix()):
        owner, name, revision = cached.groups()
        return {"base_model_name_or_path": f"{owner}/{name}", "revision": revision}
    if _is_path(given):
        return {"base_model_name_or_path": given}
    name, _, revision = given.partition("@")
    return {"base_model_name_or_path": name, **({"revision": revision} if revision else {})}


def _is_path(given: str) -> bool:
    return Path(given).is_absolute() or given.startswith((".", "~")) or Path(given).exists() or given.count("/") != 1


def say_readers(source: Source, out: Path, form: PeftForm, rank: int | None, say: Say) -> None:
    """Say how the folder is served, and what of it others cannot read."""
    base = base_keys(source)["base_model_name_or_path"] or "BASE"
    say_merged(source, say)
    if source.started_from is not None and _is_path(base):
        say(f"notice: the folder names its base {base}, a path of this machine; elsewhere name the base yourself")
    if not is_lora(form):
        say(
            f"notice: peft reads this ({form.config['peft_type']}{' with DoRA' * bool(form.config.get('use_dora'))}); vLLM, SGLang and"
            " llama.cpp take plain LoRA alone: give them --merge, or --as-lora where the change has a low rank"
        )
        return
    modules = sorted({module_of(name) for name in form.names.values()})
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
        say_vllm(base, out, rank, say)


def say_merged(source: Source, say: Say) -> None:
    """Say what stands between the adapter and the weights that its folder names."""
    if source.parts.merged:
        paths = ", ".join(str(each.folder.path) for each in source.parts.merged)
        say(
            f"notice: the adapter stands over weights with {paths} merged into them, not over {source.started_from} alone, so that its"
            " folder names no base; here it goes over both (--model.adapters), elsewhere --merge writes all as one model"
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


def say_vllm(base: str, out: Path, rank: int, say: Say) -> None:
    """Say the command that serves a LoRA of this rank, or that vLLM takes none so large."""
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
