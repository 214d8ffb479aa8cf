"""Requests of lm-evaluation-harness: what is cut, counted and refused, what is said of figures, and what is left as it was."""

from __future__ import annotations

import json
import os
import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from harness_worlds import folder, run, scripted_subject, subject, weights
from plain_subject import PlainSubject, ScriptedSubject

from mt_core import DataError, UsageError
from mt_core.generation import Generation
from mt_plugin_evals.harness.config import HarnessConfig
from mt_plugin_evals.harness.evaluation import Harness
from mt_plugin_standard.tokenizers.byte import ByteTokenizer
from mt_train import load_adapters

pytest.importorskip("lm_eval")

__all__ = ["folder", "scripted_subject", "subject", "weights"]


def test_a_group_has_figures_and_its_tasks_are_listed_beside(scripted_subject: ScriptedSubject, folder: Path) -> None:
    found = run(scripted_subject, folder, "my_group")
    assert set(found.figures) == {"my_group_acc", "my_group_acc_stderr"}
    assert set(found.groups) == {"my-letters", "my_long"}
    assert {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"} == set(found.groups["my_long"])


def test_the_standard_error_of_a_group_is_made_of_those_of_its_tasks(
    scripted_subject: ScriptedSubject, folder: Path
) -> None:
    from lm_eval.api.metrics import pooled_sample_stderr

    found = run(scripted_subject, folder, "my_group")
    errors = [found.groups[task]["acc_stderr"] for task in ("my-letters", "my_long")]
    assert found.figures["my_group_acc_stderr"] == pytest.approx(pooled_sample_stderr(errors, [5, 5]))
    assert min(errors) > 0


def test_a_group_that_adds_nothing_up_has_the_figures_of_its_groups_and_tasks(
    scripted_subject: ScriptedSubject, folder: Path, tmp_path: Path
) -> None:
    for file in folder.glob("my*.yaml"):
        (tmp_path / file.name).write_text(file.read_text())
    of_its_own = {**yaml.safe_load((folder / "my_long.yaml").read_text()), "task": "own", "num_fewshot": 1}
    suite = {"group": "suite", "task": ["my_group", "my_mutual", of_its_own]}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    found = run(scripted_subject, tmp_path, "suite")
    names = {figure for figure in found.figures if "_stderr" not in figure}
    assert names == {"my_group_acc", "my_mutual_acc_mutual_info", "suite_own_acc", "suite_own_acc_norm"}
    assert set(found.groups) == {"my-letters", "my_long"}


def test_figures_may_be_numbers_of_numpy(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def score(doc, results):\n    return {'hits': np.int64(doc['a'].strip('# ') in results[0])}\n"
        "def add_up(items):\n    return np.int64(sum(items))\n"
    )
    metrics = "- {metric: hits, aggregation: !function own.add_up, higher_is_better: true}\n"
    whole = yaml.safe_load((folder / "my_sums.yaml").read_text())
    kept = {key: value for key, value in whole.items() if key not in ("metric_list", "filter_list")}
    text = f"{yaml.safe_dump(kept)}process_results: !function own.score\nmetric_list:\n{metrics}"
    (tmp_path / "my_sums.yaml").write_text(text)
    found = run(ScriptedSubject(lambda prompt, number: " #### 7"), tmp_path, "my_sums", shots=0)
    assert found.figures == {"my_sums_hits": 1.0}


def test_figures_say_how_they_were_computed_and_unread_answers_are_counted(folder: Path) -> None:
    subject = ScriptedSubject(lambda prompt, number: " #### 7\nQuestion: x" if number else " seven")
    found = run(subject, folder, "my_sums", shots=0)
    assert found.figures["my_sums_unread_strict_match"] == 0.5
    assert found.figures["my_sums_exact_match_strict_match"] == 0
    assert found.signatures["my_sums_exact_match_strict_match"] == (
        f"lm_eval {version('lm_eval')}, task my_sums 3.0, 0 shots, plain, bos run"
    )
    (config,) = subject.configs
    assert config.stop == ("Question:", "</s>")
    assert (config.max_new_tokens, config.rules.greedy) == (24, True)


def test_rows_can_be_written_down(scripted_subject: ScriptedSubject, folder: Path) -> None:
    found = run(scripted_subject, folder)
    assert [json.loads(json.dumps(row)) for row in found.rows] == list(found.rows)


def test_standard_errors_of_means_are_lm_evals(scripted_subject: ScriptedSubject, folder: Path) -> None:
    from lm_eval.api.metrics import mean_stderr

    found = run(scripted_subject, folder, "my_long")
    right = [row["acc"] for row in found.rows]
    assert found.figures["my_long_acc_stderr"] == pytest.approx(mean_stderr(right))
    assert 0 < sum(right) < len(right)


def test_no_random_state_is_moved_and_no_variable_left(scripted_subject: ScriptedSubject, folder: Path) -> None:
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), dict(os.environ)
    run(scripted_subject, folder, "my-letters", "my_sums")
    assert before == (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        dict(os.environ),
    )


def test_local_tasks_ask_no_network(
    scripted_subject: ScriptedSubject, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError(f"the network was asked: {given}")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    assert run(scripted_subject, folder, "my_long").figures


def test_what_is_longer_than_the_context_loses_its_begin_and_is_counted(folder: Path) -> None:
    subject = ScriptedSubject(lambda prompt, number: "7", max_seq_len=60)
    asked: list[Any] = []
    subject.score = lambda requests: asked.extend(requests) or type(subject).score(subject, requests)  # type: ignore[method-assign]
    found = run(subject, folder, "my-letters", "my_sums")
    assert all(len(context) + len(target) == 61 for context, target in asked)
    assert found.notes[0].startswith(f"{len(asked) + 1} requests of lm_eval were longer")
    assert bytes(id for id in asked[0].context if id < 256).endswith(b"Answer:")


def test_an_answer_gets_what_a_small_context_leaves_and_prompts_keep_half(folder: Path) -> None:
    subject = ScriptedSubject(lambda prompt, number: "7", max_seq_len=40)
    found = run(subject, folder, "my_sums")
    assert [config.max_new_tokens for config in subject.configs] == [20]
    assert all(prompt.endswith("Answer:") for prompt in subject.prompts)
    assert "2 answers may have fewer tokens" in found.notes[1]


def test_a_stop_text_of_a_task_that_has_a_special_token_and_more_ends_nothing(
    subject: PlainSubject, folder: Path, tmp_path: Path
) -> None:
    """``gsm8k_cot_llama`` has such a one, which nobody who runs it can take out."""
    task = yaml.safe_load((folder / "my_sums.yaml").read_text())
    task["generation_kwargs"]["until"] += ["<|user|>you<|end|>", "<|end|>\n"]
    (tmp_path / "my_sums.yaml").write_text(yaml.safe_dump(task))
    found, plain = (run(subject, each, "my_sums") for each in (tmp_path, folder))
    assert [row["answers"] for row in found.rows] == [row["answers"] for row in plain.rows]


def test_a_conversation_ends_with_its_turn_and_has_one_begin_token(weights: tuple[str, Path], folder: Path) -> None:
    loaded, _ = load_adapters({}, model=weights[0], weights=weights[1])
    subject = PlainSubject(loaded)
    begin, end = loaded.tokenizer.bos_id, loaded.tokenizer.encode("<|end|>")[0]
    written = loaded.tokenizer.encode("It is 7")
    subject.generate = lambda prompts, config: [  # type: ignore[method-assign]
        subject.prompts.append(prompt) or Generation("It is 7 and more", (*written, end, *written), "length")
        for prompt in prompts
    ]
    found = run(subject, folder, "my_sums", chat=True)
    assert {row["answers"][0][0] for row in found.rows} == {"It is 7"}
    assert all(prompt[0] == begin and begin not in prompt[1:] for prompt in subject.prompts)


@pytest.mark.parametrize("bos", ["run", "always", "none"])
def test_the_begin_token_is_there_where_it_is_wished(bos: str, weights: tuple[str, Path], folder: Path) -> None:
    loaded, _ = load_adapters({}, model=weights[0], weights=weights[1])
    subject = PlainSubject(loaded)
    run(subject, folder, "my-letters", bos=bos, limit=1)
    begins = subject.asked[0].context[0] == loaded.tokenizer.bos_id
    assert begins == (bos == "always" or (bos == "run" and weights[0] != "qwen"))
    assert len(subject.asked) == 4


class NoSpecials(ByteTokenizer):
    bos_id = None
    eos_id = None


FAULTS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "no such task": (("my_sum",), {}, r"no task, group or tag 'my_sum'.* in .*Did you mean 'my_sums'"),
    "twice": (("my_long", "my_group"), {}, "'my_long' is asked for twice, the second time by 'my_group'"),
    "code": (("code",), {}, "task code runs code that the model wrote; allow it with .*run-untrusted-code"),
    "no rows": (("empty",), {}, r"task empty .* cannot be loaded .*with one row at least"),
    "lost rows": (("lost",), {}, "task lost .* cannot be loaded .*have to be on this machine"),
    "odd wish": (("odd",), {}, r"task odd, document 0: the task wants stop_words in generation_kwargs"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_clear_message(
    name: str, folder: Path, tmp_path: Path, scripted_subject: ScriptedSubject
) -> None:
    sums = yaml.safe_load((folder / "my_sums.yaml").read_text())
    (tmp_path / "none.jsonl").write_text('{"q": "x", "a": "y"}\n')
    nothing = {
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "none.jsonl")}},
        "process_docs": "!function nothing.none",
    }
    changed: dict[str, dict[str, Any]] = {
        "code": {"unsafe_code": True},
        "lost": {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "gone.jsonl")}}},
        "odd": {"generation_kwargs": {"until": ["x"], "stop_words": ["y"]}},
        "empty": nothing,
    }
    for task, changes in changed.items():
        text = yaml.safe_dump({**sums, "task": task, **changes}).replace(
            "'!function nothing.none'", "!function nothing.none"
        )
        (tmp_path / f"{task}.yaml").write_text(text)
    (tmp_path / "nothing.py").write_text("def none(rows):\n    return rows.select([])\n")
    for each in folder.glob("*.yaml"):
        (tmp_path / each.name).write_text(each.read_text())
    tasks, options, message = FAULTS[name]
    with pytest.raises((UsageError, DataError), match=f"(?s){message}"):
        run(scripted_subject, tmp_path, *tasks, **options)
    if name != "odd wish":  # which is found as the model is asked
        with pytest.raises((UsageError, DataError), match=f"(?s){message}"):
            Harness(HarnessConfig(tasks=tasks, include=str(tmp_path), **options)).check(scripted_subject)
    assert not scripted_subject.prompts


def test_nothing_left_to_score_is_refused_by_the_name_of_the_request(folder: Path) -> None:
    """A tokenizer that makes one token of the last letter of the context and the choice."""

    class Merging(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace(": A", ":"))

    subject = ScriptedSubject(lambda prompt, number: "", tokenizer=Merging())
    with pytest.raises(
        UsageError, match=r"task my-letters, document 0: nothing of ' A' is left to score after '.*Answer:'"
    ):
        run(subject, folder, "my-letters")


def test_a_task_that_writes_is_refused_before_the_first_forward_where_the_layout_cannot(folder: Path) -> None:
    subject = ScriptedSubject(lambda prompt, number: "")
    subject.texts = False
    subject.score = lambda requests: pytest.fail("the model was asked")  # type: ignore[method-assign]
    with pytest.raises(UsageError, match=r"task my_sums lets the model write, which it cannot on this layout.*mt-eval"):
        run(subject, folder, "my-letters", "my_sums")


def test_a_folder_that_is_none_is_refused(scripted_subject: ScriptedSubject, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"include: .*nowhere is no folder"):
        run(scripted_subject, tmp_path / "nowhere", "x")


def test_a_tokenizer_without_begin_and_end_is_refused(folder: Path) -> None:
    subject = ScriptedSubject(lambda prompt, number: "", tokenizer=NoSpecials())
    with pytest.raises(UsageError, match="the tokenizer has neither a begin nor an end token"):
        run(subject, folder, "my_rolling")


def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scripted_subject: ScriptedSubject
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(
        UsageError, match=r"harness needs the library lm_eval.*pip install 'mt-plugin-evals\[harness\]'"
    ):
        Harness(HarnessConfig(tasks=("x",))).run(scripted_subject)


def test_a_text_without_context_that_spells_the_begin_token_has_it_once(weights: tuple[str, Path]) -> None:
    from lm_eval.api.instance import Instance

    from mt_plugin_evals.harness.model import SubjectLM

    loaded, _ = load_adapters({}, model=weights[0], weights=weights[1])
    subject, begin = PlainSubject(loaded), loaded.tokenizer.bos_id
    requests = [Instance("loglikelihood", {}, ("", text), 0) for text in ("red", "<s>red")]
    assert len(set(SubjectLM(subject).loglikelihood(requests))) == 1
    assert [(list(each.context), each.target[0] == begin) for each in subject.asked] == [([begin], False)] * 2
