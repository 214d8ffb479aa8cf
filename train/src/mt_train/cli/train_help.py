"""``mt-train --help``: the options of exactly the chosen components, grouped by slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from mt_core.components import AdapterComponent, ModelFamily
from mt_core.config.base import MtConfig, nested_config
from mt_core.errors import UsageError, did_you_mean, show_value
from mt_core.kinds import Kind
from mt_core.plugins.host import PluginHost
from mt_core.plugins.metadata import canonicalize
from mt_train.config.commandline import merge
from mt_train.config.foreign_answers import answer_name
from mt_train.config.run import SECTIONS, AdapterOptions, ModelOptions

HEAD = """usage: mt-train --model NAME [--config FILE] [--key value …]

Trains a language model. Every key of the YAML config is also an option, with '-' or '_':
  mt-train --model llama --model.n-layers 6 --train.steps 500 --optimizer.lr 1e-3

The command itself:
  --recipe NAME              a run that a distribution ships, under all other keys (`mt-plugins recipes` lists them)
  --config FILE              YAML or JSON config; options on the command line win; may be repeated, the later file wins
  --output FOLDER            where the run goes; default runs/MODEL-SIZE-NNN; none writes no file
  --overwrite                replace what an earlier run wrote there
  --resume RUN|auto          go on from the last checkpoint of a run, or from one checkpoint; auto: go on in --output
                             where a run has saved something, else start it; s3://… is fetched into --output (runs/NAME)
  --train.seeds 1,2,3        one run a seed, in turn; mean and deviation of the results
  --nproc-per-node N|auto    processes on this machine
  --restart N                start a run that failed again, up to N times, from its last checkpoint, on the devices that are left
  --replay STEPS             with --resume RUN/checkpoints/STEP: compute the steps behind it again, and say whether losses and norms
                             are the recorded ones, bit for bit; nothing is written
  --dry-run                  check everything, print the plan with its memory a rank, and start nothing
  --nnodes N                 with --dry-run: machines of --nproc-per-node processes each
  --json                     with --dry-run: the plan as JSON
  --gpu NAME                 with --dry-run: whether it fits these GPUs (h100-80g; another name lists them), or what makes it fit
  --plan                     with --dry-run and --gpu: the five fastest layouts that fit, with the time of a step
  --network GBIT             with --gpu: gigabits a second from each GPU to other nodes (400: one card of 400 for every GPU)
  --host-memory GIB          with --gpu: memory of a node, for what is offloaded
  --plot FILE.png            with --dry-run: the learning rate of each parameter group over all steps, as a picture
  --print-config             print the resolved config and where each value came from, and end
  --schema                   print a JSON Schema of configs, with every installed component, for an editor; again after an install
  --profile DIR              write a torch profile of a few steps
  --block-plugin NAME        do not import this plugin (may be repeated)
  --debug                    show tracebacks
  --completion bash|zsh|fish print what completes options and names in a shell; again after an install
  --version, --help [TOPIC]  all, a section (data, …), a kind (model, …) or any word (warmup); alone: one screen"""

_SHORTEST = 3
"""Letters of the shortest word that is looked for in names of options."""


def help_text(
    host: PluginHost,
    raw: Mapping[str, Any],
    *,
    head: str = HEAD,
    slots: Iterable[str] | None = None,
    sections: Mapping[str, type[MtConfig]] = SECTIONS,
) -> str:
    """The page; with ``--model`` and others given, their options too. Raises ``ComponentError`` for an unknown name."""
    parts = [head]
    for kind in host.kinds.values():
        if kind.slot == "one" and (slots is None or kind.name in slots):
            parts.append(_slot(host, kind, _chosen(kind, raw)))
    if slots is None:
        several = [kind for kind in host.kinds.values() if kind.slot == "many"]
        parts.extend(_describe_several(host, kind.key, kind.name, raw.get(kind.key)) for kind in several)
    parts.extend(_section(section, config) for section, config in sections.items())
    return "\n\n".join(parts)


def topic_text(host: PluginHost, raw: Mapping[str, Any], topic: str) -> str:
    """Return the options of one section or kind, or those that a word finds. Raises ``UsageError`` for one that finds none."""
    key = topic.replace("-", "_")
    if key in SECTIONS:
        return _section(key, SECTIONS[key])
    kinds = {kind.key: kind for kind in host.kinds.values() if kind.slot != "part"}
    if key not in kinds:
        if found := _search(host, raw, topic):
            return "\n".join(found)
        known = [each.replace("_", "-") for each in ("all", *SECTIONS, *kinds)]
        raise UsageError(
            f"--help has no topic {show_value(topic)}. {did_you_mean(topic, known)}Topics: {', '.join(known)}"
        )
    kind = kinds[key]
    if kind.slot == "many":
        return _describe_several(host, key, kind.name, raw.get(key))
    return _slot(host, kind, _chosen(kind, raw))


def _search(host: PluginHost, raw: Mapping[str, Any], word: str) -> list[str]:
    """Return a line for another program's option of this name, each component of this name, and each option with the word in its own."""
    short, answer = canonicalize(word), answer_name(word)
    configs: list[tuple[str, type[MtConfig]]] = list(SECTIONS.items())
    named: list[str] = []
    for kind in host.kinds.values():
        option, chosen = f"--{kind.key.replace('_', '-')}", _chosen(kind, raw) if kind.slot == "one" else None
        for component in [offer.component for offer in host.offers(kind.name) if kind.slot != "part"]:
            if component.name == short:
                named.append(f"  {f'{option} {short}':<34} {component.summary}; its options: {option} {short} --help")
            if component.name == chosen:
                configs.append((kind.key, component.config))
    lines = [line for prefix, config in configs for line in options(prefix, config) if _has_word(line, short)]
    return [f"  {answer}"] * bool(answer) + named + lines


def _has_word(line: str, short: str) -> bool:
    """Return whether the name of an option is the word, or has it in its parts behind the slot or section; a shorter one is in too many."""
    key = line.split()[0].partition(".")[2]
    return key.rpartition(".")[2] == short or (len(short) >= _SHORTEST and short in key)


def _chosen(kind: Kind, raw: Mapping[str, Any]) -> str | None:
    given = raw.get(kind.key, {})
    return given.get("name", kind.default) if isinstance(given, dict) else kind.default


def _section(section: str, config: type[MtConfig]) -> str:
    return _group(f"{section} ({(config.__doc__ or '').splitlines()[0]})", section, config)


def _slot(host: PluginHost, kind: Kind, name: str | None) -> str:
    slot, option = kind.key, kind.key.replace("_", "-")
    installed = ", ".join(offer.component.name for offer in host.offers(kind.name)) or "none"
    if name is None:
        needed = f" (required, unless --{option}.weights FOLDER says it)" if kind.required else ""
        return f"--{option} NAME{needed}\n  installed: {installed}; add --help to one to see its options"
    offer = host.get(kind.name, name)
    title = f"--{option} {offer.component.name}: {offer.component.summary} (from {offer.plugin.label}; installed: {installed})"
    text = _group(title, slot, offer.component.config)
    if isinstance(offer.component, ModelFamily):
        sizes = f"  sizes: {', '.join(offer.component.variants)} (default {offer.component.default_variant})"
        text = "\n".join([text, sizes, *options(slot, ModelOptions)])
    if isinstance(offer.component, AdapterComponent):
        text = "\n".join([text, *options(slot, AdapterOptions)])
    return text


def _describe_several(host: PluginHost, key: str, kind: str, given: Any) -> str:
    """List the components that are named, with their options, and the names of the others."""
    installed = ", ".join(offer.component.name for offer in host.offers(kind)) or "none"
    named = merge({}, {key: given or {}}, host.kinds)[key]
    lines = [f"--{key.replace('_', '-')} NAME,NAME (installed: {installed}; name some to see their options)"]
    for name in named if isinstance(named, dict) else ():
        component = host.get(kind, str(name)).component
        lines += [f"  {component.name}: {component.summary}", *options(f"{key}.{component.name}", component.config)]
    return "\n".join(lines)


def _group(title: str, prefix: str, config: type[MtConfig]) -> str:
    return "\n".join([title, *options(prefix, config)])


def options(prefix: str, config: type[MtConfig]) -> list[str]:
    """One line an option, nested ones too: flag, description, default."""
    lines: list[str] = []
    for name, field in config.model_fields.items():
        nested = nested_config(field.annotation)
        lines += [_option(prefix, name, field), *(options(f"{prefix}.{name}", nested) if nested else ())]
    return lines


def _option(prefix: str, name: str, field: FieldInfo) -> str:
    flag = f"--{prefix}.{name}".replace("_", "-")
    default = "" if field.is_required() else f" (default: {_default(field)})"
    return f"  {flag:<34} {field.description or ''}{default}"


def _default(field: FieldInfo) -> str:
    """Return the default as text. A config that is made without values differs in nothing, and making one builds its validators."""
    made = field.default_factory
    fresh = made is not None and made is nested_config(field.annotation)
    return _format(None if fresh else field.get_default(call_default_factory=True))


def _format(value: Any) -> str:
    if isinstance(value, MtConfig):
        return (
            ", ".join(f"{key}: {_format(item)}" for key, item in value.model_dump(exclude_defaults=True).items())
            or "none"
        )
    return (
        "none" if value is None or value in ((), {}) else str(value).lower() if isinstance(value, bool) else str(value)
    )
