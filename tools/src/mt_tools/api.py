"""Text, figures and folders of weights from Python, as the commands make them: the same errors, no ``sys.exit``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mt_core.errors import DataError, UsageError, did_you_mean
from mt_core.generation import GenerationConfig, SamplingRules
from mt_core.tracking.logs import notice
from mt_train.assemble.choice import chosen_checkpoints
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.run_file import run_config
from mt_train.config import arguments
from mt_train.config.layers import Layer, Layers
from mt_train.config.names import expand
from mt_train.config.plain import check_plain
from mt_train.plugins.modules import check_given

if TYPE_CHECKING:
    from mt_core.generation import Generation
    from mt_core.plugins.host import PluginHost
    from mt_tools.convert.source import Source
    from mt_tools.generation.prompts import Prompt
    from mt_train.generation.loaded_model import LoadedModel


def generate(
    loaded: LoadedModel,
    prompts: str | Sequence[Prompt | Mapping[str, Any]],
    *,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    choices: Sequence[str] = (),
    batch_size: int = 8,
    seed: int = 0,
    chat_template: str | None = None,
    logprobs: bool = False,
    **rules: Any,
) -> list[Generation]:
    """Continue each prompt (a text, or the messages of a conversation): text, ids, and why each ended.

    A text with media is a mapping, as in a file of prompts: ``{"prompt": "<image> What is it?", "images": ["cat.png"]}``.

    ``rules`` are those of ``mt-generate``: ``greedy``, ``temperature``, ``top_k``, ``top_p``, ``num_beams`` and more. Prompt i
    draws from a generator that (``seed``, i) decides, so ``batch_size`` changes no text. With ``logprobs`` each
    says how likely its tokens were. Raises ``UsageError``.
    """
    from mt_tools.generation.generate import generate as continue_each
    from mt_train.generation.loaded_model import LoadedModel

    if not isinstance(loaded, LoadedModel):
        raise arguments.refuse("generate", "loaded", loaded, "what load_run or load_adapters gives")
    wishes = GenerationConfig(
        rules=_rules(rules),
        max_new_tokens=max_new_tokens,
        stop=(stop,) if isinstance(stop, str) else arguments.texts("generate", "stop", stop),
        choices=arguments.texts("generate", "choices", choices),
        seed=seed,
        logprobs=logprobs,
    )
    listed = _prompts(loaded, prompts)
    if chat_template is not None:
        arguments.text("generate", "chat_template", chat_template, "the name of a template, a Jinja file, or None")
        if not any(isinstance(prompt, list) for prompt in listed):
            raise UsageError(
                "generate(): chat_template writes conversations down, and every prompt is plain text; leave it out"
            )
    return continue_each(loaded, listed, wishes, batch_size=batch_size, chat_template=chat_template)


def evaluate(
    run: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    weights: str | Path | None = None,
    checkpoints: str | int = "last",
    averaged: str | None = None,
    dtype: str = "auto",
    plugins: Iterable[ModuleType] = (),
) -> list[dict[str, Any]]:
    """Evaluate checkpoints of a run, or pretrained ``weights``: one mapping for each, as ``metrics.json`` of ``mt-eval`` has it.

    Without ``config`` on the run's held-out rows; with its ``dataset`` (and ``data`` …) on those rows, and with its ``evaluations`` what
    they ask. ``checkpoints`` is ``last``, ``best``, ``all`` or steps (``100,200``); ``averaged``, ``dtype`` and ``plugins`` are as in
    ``load_run``. It writes no file. Raises ``MtError``, as the command reports it.
    """
    from mt_tools.evaluation.jobs import jobs_of, measure

    precision = arguments.dtype("evaluate", dtype)
    asked = {} if config is None else arguments.require_mapping("evaluate", "config", config, _ASKED)
    check_plain(asked)
    if averaged is not None:
        arguments.text("evaluate", "averaged", averaged, "the name of a callback of the run, such as 'ema', or None")
    host = discover_plugins(modules=check_given("evaluate", plugins))
    asked = Layers.of([Layer("config", asked)], host.kinds).raw
    models = _evaluated(run, weights, checkpoints, asked)
    jobs = [job for checkpoint, stored in models for job in jobs_of(checkpoint, stored, asked, host)]
    return measure(jobs, wanted=False, averaged=averaged, dtype=precision)[0]


def export_run(
    run: str | Path,
    output: str | Path,
    *,
    form: str = "model",
    checkpoint: str | int = "last",
    averaged: str | None = None,
    base: str | None = None,
    rank: int | None = None,
    dtype: str | None = None,
    tolerance: float | None = None,
    plugins: Iterable[ModuleType] = (),
) -> Path:
    """Write what a run trained into the new folder ``output`` and return it, as ``mt-convert`` and ``mt-export`` do.

    ``form`` is ``"model"``: a whole Hugging Face folder, an adapter merged into its base; ``"adapter"``: the adapter as peft opens it; or
    ``"lora"``: what any adapter changes as a LoRA, of at most ``rank``. ``base`` names the base on the Hub. ``dtype`` (fp32, bf16, fp16)
    of a model is by default that of the weights. ``tolerance`` is the largest mean difference of logits, where the command has it.
    ``plugins`` are as in ``load_run``. Raises ``MtError``, as the commands report it, and writes nothing then.
    """
    from mt_tools.convert.adapter_readers import check_base_name
    from mt_tools.convert.source import open_run
    from mt_tools.convert.writing import check_free

    _check_form(form, rank=rank, dtype=dtype, tolerance=tolerance)
    run = Path(expand(arguments.path("export_run", "run", run)))
    out = Path(expand(arguments.path("export_run", "output", output)))
    check_free(out)
    which = str(checkpoint) if type(checkpoint) is int else checkpoint
    which = arguments.text("export_run", "checkpoint", which, "'last', 'best', or a saved step")
    if averaged is not None:
        arguments.text("export_run", "averaged", averaged, "the name of a callback of the run, such as 'ema', or None")
    if base is not None:
        check_base_name(arguments.text("export_run", "base", base, "org/name, org/name@revision, or None"))
    host = discover_plugins(modules=check_given("export_run", plugins))
    source = replace(open_run(run, which, host), averaged=averaged, base_name=base)
    if form == "model":
        _write_model(source, out, host, dtype, tolerance)
    else:
        _write_adapter(source, out, host, form, rank, tolerance)
    return out


def _check_form(form: str, **given: Any) -> None:
    """Raise ``UsageError`` for an unknown form, and for an argument that it does not take, or that is none."""
    if form not in _FORMS:
        raise arguments.refuse("export_run", "form", form, " or ".join(map(repr, _FORMS)))
    for name, value in given.items():
        if value is not None and name not in _FORMS[form]:
            raise arguments.refuse("export_run", name, value, f"None with form={form!r}")
    rank, dtype, tolerance = given["rank"], given["dtype"], given["tolerance"]
    if rank is not None:
        arguments.check_whole_number("export_run", "rank", rank, 1)
    if dtype is not None and dtype not in arguments.DTYPES[1:]:
        raise arguments.refuse("export_run", "dtype", dtype, f"{', '.join(arguments.DTYPES[1:])} or None")
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 <= tolerance < math.inf):
        raise arguments.refuse("export_run", "tolerance", tolerance, "a number from 0 on, or None")


def _write_model(source: Source, out: Path, host: PluginHost, dtype: str | None, tolerance: float | None) -> None:
    from mt_tools.convert.adapter_merge import merge
    from mt_tools.convert.folder import convert
    from mt_tools.convert.source import build_on_meta, inject_adapter
    from mt_tools.convert.writing import SHARD_BYTES

    if inject_adapter(source, build_on_meta(source.parts)):
        merge([(source, 1.0)], out, host, dtype=dtype, shard_bytes=SHARD_BYTES, tolerance=tolerance, say=notice)
        return
    if tolerance is not None:
        raise arguments.refuse("export_run", "tolerance", tolerance, "None for a run without an adapter to merge")
    convert(source, out, dtype=dtype, say=notice)


def _write_adapter(
    source: Source, out: Path, host: PluginHost, form: str, rank: int | None, tolerance: float | None
) -> None:
    from mt_tools.convert.adapter import export_adapter
    from mt_tools.convert.adapter_lora import export_as_lora
    from mt_tools.convert.adapter_readers import say_changed_base
    from mt_tools.convert.whole import refuse_encoders

    refuse_encoders(source)
    say_changed_base(source, host, notice)
    if form == "lora":
        export_as_lora(source, out, host, rank=rank, tolerance=tolerance, say=notice)
    else:
        export_adapter(source, out, notice)


_FORMS = {"model": ("dtype", "tolerance"), "adapter": (), "lora": ("rank", "tolerance")}
"""Form of an export → the arguments of ``export_run`` that it takes, beside those of all."""
_ASKED = (
    "a mapping of what counts over the model's own config, such as {'dataset': {'name': 'jsonl', 'path': 'rows.jsonl'}}"
)


def _evaluated(
    run: str | Path | None, weights: str | Path | None, checkpoints: str | int, asked: Mapping[str, Any]
) -> list[tuple[Path | None, Mapping[str, Any]]]:
    """Return the models by checkpoint (``None`` for weights), each with its config."""
    if (run is None) == (weights is None):
        raise UsageError(f"evaluate() takes one of run and weights; got {'none' if run is None else 'both'}")
    if weights is not None:
        path = arguments.path("evaluate", "weights", weights)
        if checkpoints != "last":
            raise UsageError("evaluate(): checkpoints are those of a run, and weights have none; leave it out")
        return [(None, {"model": {"weights": expand(path)}})]
    if "model" in asked:
        raise UsageError("evaluate(): a run brings its own model; leave 'model' out of config")
    which = str(checkpoints) if type(checkpoints) is int else checkpoints
    which = arguments.text(
        "evaluate", "checkpoints", which, "'last', 'best', 'all', a saved step, or steps as '100,200'"
    )
    found = chosen_checkpoints(Path(expand(arguments.path("evaluate", "run", run))), which)
    return [(checkpoint, run_config(checkpoint)) for checkpoint in found]


def _prompts(loaded: LoadedModel, given: Any) -> list[Prompt]:
    """The prompts one by one. Raises ``UsageError`` for what is neither a text, with or without media, nor a conversation."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise arguments.refuse("generate", "prompts", given, _PROMPTS)
    return [_prompt(loaded, prompt, f"prompts[{index}]") for index, prompt in enumerate(given)]


def _prompt(loaded: LoadedModel, prompt: Any, place: str) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping) and "prompt" in prompt:
        return _media_text(loaded, prompt, place)
    is_conversation = isinstance(prompt, list | tuple) and all(isinstance(turn, Mapping) for turn in prompt)
    if not (prompt and is_conversation):
        raise arguments.refuse("generate", place, prompt, _PROMPTS)
    _check_turns(list(prompt), place)
    return list(prompt)


def _media_text(loaded: LoadedModel, prompt: Mapping[str, Any], place: str) -> Prompt:
    """Return the text of a mapping with its media: a path, or the letters of a sequence, or a list of these for each kind."""
    from mt_tools.generation.media import MediaFiles
    from mt_train.data.media.rules import MediaRules

    text = arguments.text("generate", f"{place}['prompt']", prompt["prompt"])
    files: list[tuple[str, str]] = []
    for key, given in prompt.items():
        if key == "prompt":
            continue
        kind = str(key).removesuffix("s")
        if kind not in loaded.media_kinds:
            known = ", ".join(f"{each}s" for each in sorted(loaded.media_kinds)) or "none, as it reads text alone"
            raise UsageError(f"generate(): {place} has {key!r}, and the model takes, beside 'prompt', {known}")
        listed = given if isinstance(given, list | tuple) else [given]
        files += [(kind, arguments.path("generate", f"{place}[{key!r}]", each)) for each in listed]
    try:
        return MediaFiles(files, MediaRules(kinds=loaded.media_kinds, roots=())).mark(text, whole=True)
    except DataError as error:
        raise UsageError(f"generate(): {place}: {error}") from error


def _check_turns(prompt: list[Any], place: str) -> None:
    from mt_core.data.turns import turns

    try:
        turns(prompt, f"generate(): {place}")
    except DataError as error:
        raise UsageError(str(error)) from error


_PROMPTS = (
    "a text or the messages of a conversation, or a list of these: ['The '], [[{'role': 'user', 'content': 'Hello'}]]"
)


def _rules(given: Mapping[str, Any]) -> SamplingRules:
    known: list[str] = [each.name for each in fields(SamplingRules)]
    if unknown := [name for name in given if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise UsageError(f"generate() knows no rule {unknown[0]!r}. {hint}Rules: {', '.join(known)}")
    return SamplingRules(**given)
