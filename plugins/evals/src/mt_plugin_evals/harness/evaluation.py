"""Evaluation ``harness``: tasks of lm-evaluation-harness, asked of the model as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np

from mt_core import UsageError
from mt_core.evaluation import Findings, Subject

from ..extras import package
from .config import HarnessConfig

INVALID = "[invalid]"
"""Answer of a filter of lm-evaluation-harness where an answer could not be read."""

_UNFIT = re.compile(r"[^a-z0-9]+")
_PLAIN = "none"
"""Filter that changes nothing."""
_SINGLE_PROCESS = "DISABLE_MULTIPROC"


class Harness:
    """Runs tasks of lm-evaluation-harness over a subject; see ``Evaluation``."""

    def __init__(self, config: HarnessConfig) -> None:
        self._config = config

    def check(self, subject: Subject) -> None:
        """Load the tasks with their rows. Raises ``UsageError`` and ``DataError`` as ``run`` does, where nothing has been trained yet."""
        package("lm_eval", extra="harness", user="the evaluation harness")
        from .tasks import find_tasks, load_tasks, seed_generators, silence

        files = find_tasks(self._config)
        with silence(offline=files.local), seed_generators(self._config.seed):
            load_tasks(self._config, files)

    def run(self, subject: Subject) -> Findings:
        """See ``Evaluation``. Raises ``UsageError`` before the first forward for a task that this model or layout cannot answer."""
        version = package("lm_eval", extra="harness", user="the evaluation harness").__version__
        from .model import SubjectLM
        from .tasks import find_tasks, generates, load_tasks, seed_generators, silence

        config = self._config
        files = find_tasks(config)
        with silence(offline=files.local), seed_generators(config.seed), _one_process():
            tasks = load_tasks(config, files)
            writing = [name for name, task in tasks.tasks.items() if generates(task)]
            if writing and not subject.texts:
                raise UsageError(
                    f"task {writing[0]} lets the model write, which it cannot on this layout; leave it out, or evaluate the checkpoint"
                    " with mt-eval"
                )
            model = SubjectLM(subject, bos=config.bos, chat=config.chat, seed=config.seed)
            return _findings(self._evaluate(model, tasks.task_dict), tasks, config, version, model.counts)

    def _evaluate(self, model: Any, loaded: Mapping[str, Any]) -> dict[str, Any]:
        from lm_eval.evaluator import evaluate

        config = self._config
        results: dict[str, Any] = evaluate(
            lm=model,
            task_dict=loaded,
            limit=config.limit,
            bootstrap_iters=config.bootstrap,
            apply_chat_template=config.chat,
            fewshot_as_multiturn=config.multiturn and config.chat,
            confirm_run_unsafe_code=config.run_untrusted_code,
        )
        return results


@contextmanager
def _one_process() -> Iterator[None]:
    """Inside, standard errors are resampled in this process: a pool of others beside a training would inherit its devices."""
    before = os.environ.get(_SINGLE_PROCESS)
    os.environ[_SINGLE_PROCESS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SINGLE_PROCESS]
        else:
            os.environ[_SINGLE_PROCESS] = before


def _findings(
    results: Mapping[str, Any], tasks: Any, config: HarnessConfig, version: str, counts: Mapping[str, int]
) -> Findings:
    samples: Mapping[str, list[Mapping[str, Any]]] = results.get("samples", {})
    computed = {name: dict(values) for name, values in results["results"].items()}
    for name, task in tasks.tasks.items():
        computed[name] |= _standard_errors(task, samples[name], computed[name])
    for name, group in tasks.groups.items():  # once more: the standard error of a group is made of those of its tasks
        computed[name] |= group.aggregate(computed)
    groups = {name: _own_figures(values) for name, values in computed.items()}
    for name in tasks.tasks:
        groups[name] |= _unread_shares(samples[name])
    figures: dict[str, float] = {}
    signatures: dict[str, str] = {}
    for name in tasks.asked:
        for metric, value in groups[name].items():
            figure = fresh_name(f"{name}_{metric}", figures)
            figures[figure] = value
            if "_stderr" not in figure:
                signatures[figure] = _signature(name, results, config, version)
    inner = {name: values for name, values in groups.items() if name not in tasks.asked and values}
    return Findings(
        figures=figures, groups=inner, rows=list(_rows(samples)), signatures=signatures, notes=_notes(counts)
    )


def fresh_name(text: str, known: Mapping[str, Any]) -> str:
    """Return a name of a figure: lower-case letters, digits and ``_``, and none of the known ones."""
    name = wanted = _UNFIT.sub("_", text.lower()).strip("_")
    number = 2
    while name in known:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _own_figures(values: Mapping[str, Any]) -> dict[str, float]:
    """Figures of ``METRIC,FILTER`` keys; what is not there (``N/A``) is left out."""
    figures: dict[str, float] = {}
    for key, value in values.items():
        metric, comma, kind = key.partition(",")
        if comma and isinstance(value, Real):  # also those of NumPy
            figures[fresh_name(metric if kind == _PLAIN else f"{metric}_{kind}", figures)] = float(value)
    return figures


def _standard_errors(task: Any, samples: list[Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, float]:
    """Standard errors of means, sample deviation / √n, by lm_eval's own formula and under its ``METRIC,FILTER`` keys."""
    from lm_eval.api.metrics import mean, mean_stderr

    found: dict[str, float] = {}
    means = [metric for metric, total in task.aggregation().items() if total is mean]
    for kind in dict.fromkeys(sample["filter"] for sample in samples):
        own = [sample for sample in samples if sample["filter"] == kind]
        for metric in means:
            values = [sample[metric] for sample in own if isinstance(sample.get(metric), Real)]
            key = f"{metric}_stderr,{kind}"
            if len(values) > 1 and not isinstance(known.get(key), Real):
                found[key] = float(mean_stderr(values))
    return found


def _unread_shares(samples: list[Mapping[str, Any]]) -> dict[str, float]:
    """Return the share of answers that a task's filters could not read, by filter."""
    rates: dict[str, float] = {}
    for kind in dict.fromkeys(sample["filter"] for sample in samples if sample["filter"] != _PLAIN):
        own = [sample["filtered_resps"] for sample in samples if sample["filter"] == kind]
        rates[fresh_name(f"unread_{kind}", {})] = sum(INVALID in list(answer) for answer in own) / len(own)
    return rates


def _signature(name: str, results: Mapping[str, Any], config: HarnessConfig, version: str) -> str:
    task = f"{name} {results['versions'].get(name, 'N/A')}"
    shots = results["n-shot"].get(name)
    asked = "" if shots is None else f", {shots} shots"
    limit = "" if config.limit is None else f", first {config.limit} questions"
    return f"lm_eval {version}, task {task}{asked}, {'chat' if config.chat else 'plain'}, bos {config.bos}{limit}"


def _notes(counts: Mapping[str, int]) -> list[str]:
    notes = []
    if cut := counts["cut"]:
        notes.append(f"{cut:,} requests of lm_eval were longer than the model's context and lost their beginning")
    if shortened := counts["shortened"]:
        notes.append(
            f"{shortened:,} answers may have fewer tokens than their task says: prompts keep half of the model's context"
        )
    return notes


def _rows(samples: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """One row for each question and filter."""
    for task, listed in samples.items():
        for sample in listed:
            yield {
                "task": task,
                "document": sample["doc_id"],
                "filter": sample["filter"],
                "requests": _json_value(sample["arguments"]),
                "answers": _json_value(sample["resps"]),
                "read": _json_value(sample["filtered_resps"]),
                "target": _json_value(sample["target"]),
                **{name: _json_value(sample[name]) for name in sample["metrics"]},
            }


def _json_value(value: Any) -> Any:
    """Return a value as JSON has it: tasks give tuples, NumPy's numbers, and whatever else they like."""
    if isinstance(value, Mapping):
        return {str(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)
