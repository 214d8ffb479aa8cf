"""Each published set on small samples in the shapes in which it was published; the texts are ours."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import open_dataset, rows_of

from mt_core import DataError, conversation
from mt_plugin_datasets.sets.glue import TASKS
from mt_plugin_datasets.sets.table import SETS


@dataclass(frozen=True)
class Case:
    """A file in a set's own shape, and the row that has to come of it (its first, or all of them)."""

    name: str
    file: str
    content: Any
    rows: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)


def pair(prompt: str, response: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "response": response, **more}


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


HH = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Two\nlines?\n\nAssistant: "
CHOICES = ["red", "blue", "green", "grey"]
LETTERED = "A. red\nB. blue\nC. green\nD. grey"
SCIENCE = [{"text": text, "label": label} for text, label in zip(CHOICES, "1234", strict=True)]
TRUTHFUL = {"question": "Why?", "mc1_targets": {"no": 0, "so": 1}, "mc2_targets": {"no": 0, "so": 1, "thus": 1}}
TURNS = [{"role": "user", "content": "Write f"}, {"role": "assistant", "content": "def f(): …"}]
C3 = [
    [["女：你好。", "男：再见。"], [{"question": "谁？", "choice": ["男", "女"], "answer": "女"}], "1-1"],
    [["他走了。"], [{"question": q, "choice": ["是", "否"], "answer": "是"} for q in ("一？", "二？")], "1-2"],
]
UNNATURAL = {
    "instruction": "Add.",
    "instances": [{"instruction_with_input": "Add.\n1 2", "input": "1 2", "constraints": "None.", "output": "3"}],
    "reformulations": [
        {"instruction": "Sum {INPUT}", "instruction_with_input": "Sum 1 2", "input": "1 2", "output": "3"}
    ],
}
ULTRAFEEDBACK = {
    "prompt": "Two lines?",
    "prompt_id": "0b1e",
    "chosen": [{"content": "Two lines?", "role": "user"}, {"content": "Yes.", "role": "assistant"}],
    "rejected": [{"content": "Two lines?", "role": "user"}, {"content": "No.", "role": "assistant"}],
    "messages": [{"content": "Two lines?", "role": "user"}, {"content": "Yes.", "role": "assistant"}],
    "score_chosen": 8.5,
    "score_rejected": 4.0,
}

CASES = [
    # https://github.com/tatsu-lab/stanford_alpaca/blob/main/alpaca_data.json: an array, input may be empty
    Case(
        "alpaca",
        "alpaca_data.json",
        json.dumps(
            [
                {"instruction": "Name a colour.", "input": "", "output": "Red."},
                {"instruction": "Translate.", "input": "rot", "output": "red"},
            ],
            indent=4,
        ),
        [pair("Name a colour.", "Red."), pair("Translate.\n\nrot", "red")],
    ),
    Case("alpaca-clean", "a.json", '[{"input": "", "instruction": "Say a.", "output": "a"}]', [pair("Say a.", "a")]),
    # https://huggingface.co/datasets/yizhongw/self_instruct
    Case(
        "self-instruct",
        "a.jsonl",
        lines({"prompt": "Make a list.\nOutput:", "completion": " a, b"}),
        [pair("Make a list.\nOutput:", " a, b")],
    ),
    # https://huggingface.co/datasets/laion/OIG, unified_chip2.jsonl
    Case(
        "chip2",
        "unified_chip2.jsonl",
        lines({"text": "<human>: How?\n<bot>: So:\n\n1. this", "metadata": {"source": "unified_chip2"}}),
        [pair("How?", "So:\n\n1. this")],
    ),
    # https://github.com/anthropics/hh-rlhf: helpful-base/train.jsonl.gz
    Case(
        "hh-rlhf",
        "train.jsonl.gz",
        gzip.compress(lines({"chosen": HH + "Yes.", "rejected": HH + "No."}).encode()),
        [pair("Two\nlines?", "Yes.", history=[["Hi", "Hello."]], chosen="Yes.", rejected="No.")],
    ),
    # https://huggingface.co/datasets/HuggingFaceH4/ultrafeedback_binarized: data/train_prefs-*.parquet
    Case(
        "ultrafeedback",
        "train_prefs.parquet",
        [ULTRAFEEDBACK],
        [
            {
                "prompt": [{"role": "user", "content": "Two lines?"}],
                "chosen": [{"role": "assistant", "content": "Yes."}],
                "rejected": [{"role": "assistant", "content": "No."}],
                "score_chosen": 8.5,
                "score_rejected": 4.0,
            }
        ],
    ),
    # https://huggingface.co/datasets/Intel/orca_dpo_pairs: orca_rlhf.jsonl
    Case(
        "orca-dpo-pairs",
        "orca_rlhf.jsonl",
        lines({"system": "", "question": "Two lines?", "chosen": "Yes.", "rejected": "No."}),
        [{"system": "", "prompt": "Two lines?", "chosen": "Yes.", "rejected": "No."}],
    ),
    # https://huggingface.co/datasets/PKU-Alignment/PKU-SafeRLHF: data/Alpaca-7B/train.jsonl
    Case(
        "safe-rlhf",
        "train.jsonl",
        lines(
            {
                "prompt": "How?",
                "response_0": "So.",
                "response_1": "Do not.",
                "is_response_0_safe": False,
                "better_response_id": 1,
                "safer_response_id": 1,
            }
        ),
        [{"prompt": "How?", "chosen": "Do not.", "rejected": "So."}],
    ),
    # https://huggingface.co/datasets/stanfordnlp/SHP: askacademia/train.json
    Case(
        "shp",
        "train.jsonl",
        lines(
            {
                "post_id": "qt3nxl",
                "history": "A question",
                "human_ref_A": "More votes",
                "human_ref_B": "Fewer votes",
                "labels": 1,
                "score_A": 340,
                "score_B": 166,
            }
        ),
        [{"prompt": "A question", "chosen": "More votes", "rejected": "Fewer votes"}],
    ),
    # https://huggingface.co/datasets/akoksal/LongForm
    Case(
        "longform",
        "a.parquet",
        [{"input": "Describe it.", "output": "Long text", "source": "Wikipedia", "subset": "c"}],
        [pair("Describe it.", "Long text")],
    ),
    # https://github.com/orhonovich/unnatural-instructions, full_data.jsonl
    Case("unnatural-instructions", "a.jsonl", lines(UNNATURAL), [pair("Add.\n1 2", "3"), pair("Sum 1 2", "3")]),
    # the same as some Hub copies have it: a list of objects as an object of lists
    Case(
        "unnatural-instructions",
        "a.jsonl",
        lines({"instruction": "Add.", "instances": {"instruction_with_input": ["a", "b"], "output": ["1", "2"]}}),
        [pair("a", "1"), pair("b", "2")],
    ),
    # https://github.com/openai/grade-school-math: grade_school_math/data/train.jsonl
    Case(
        "gsm8k",
        "train.jsonl",
        lines({"question": "1 + 1?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}),
        [pair("1 + 1?", "1 + 1 = <<1+1=2>>2\n#### 2")],
    ),
    # https://dataset.org/c3: c3-d-train.json
    Case(
        "c3",
        "c3-d-train.json",
        json.dumps(C3),
        [
            pair("女：你好。\n男：再见。\n\n谁？\nA. 男\nB. 女\n答案：", "B", choices=["男", "女"], answer=1),
            pair("他走了。\n\n一？\nA. 是\nB. 否\n答案：", "A", choices=["是", "否"], answer=0),
            pair("他走了。\n\n二？\nA. 是\nB. 否\n答案：", "A", choices=["是", "否"], answer=0),
        ],
    ),
    # https://huggingface.co/datasets/dataset-org/c3
    Case(
        "c3",
        "c3.parquet",
        [
            {
                "documents": ["他走了。"],
                "document_id": "1",
                "questions": {"question": ["一？"], "answer": ["否"], "choice": [["是", "否"]]},
            }
        ],
        [pair("他走了。\n\n一？\nA. 是\nB. 否\n答案：", "B", choices=["是", "否"], answer=1)],
    ),
    # https://whyu.me/reclor: train.json
    Case(
        "reclor",
        "train.json",
        json.dumps(
            [{"context": "It rains.", "question": "Which?", "answers": CHOICES, "label": 2, "id_string": "train_0"}]
        ),
        [pair(f"It rains.\n\nWhich?\n{LETTERED}\nAnswer:", "C", choices=CHOICES, answer=2)],
    ),
    # https://github.com/lgw863/LogiQA-dataset: Train.txt, eight lines each
    Case(
        "logiqa",
        "Train.txt",
        "\nb\nIt rains.\nWhich?\nA.red\nB.blue\nC.green\nD.grey\n\na\nIt snows.\nWho?\nA. red\nB.blue\nC.green\nD.grey\n",
        [
            pair(f"It rains.\n\nWhich?\n{LETTERED}\nAnswer:", "B", choices=CHOICES, answer=1),
            pair(f"It snows.\n\nWho?\n{LETTERED}\nAnswer:", "A", choices=CHOICES, answer=0),
        ],
    ),
    # https://github.com/csitfun/LogiQA2.0: logiqa/DATA/LOGIQA/train.txt is JSON lines
    Case(
        "logiqa",
        "train.jsonl",
        lines({"id": 1, "answer": 3, "text": "It rains.", "type": {}, "question": "Which?", "options": CHOICES}),
        [pair(f"It rains.\n\nWhich?\n{LETTERED}\nAnswer:", "D", choices=CHOICES, answer=3)],
    ),
    # https://huggingface.co/datasets/lucasmccabe/logiqa
    Case(
        "logiqa",
        "a.parquet",
        [{"context": "It rains.", "query": "Which?", "options": CHOICES, "correct_option": 0}],
        [pair(f"It rains.\n\nWhich?\n{LETTERED}\nAnswer:", "A", choices=CHOICES, answer=0)],
    ),
    # https://github.com/hendrycks/test: data/test/high_school_physics_test.csv has no header
    Case(
        "mmlu",
        "high_school_physics_test.csv",
        '"Which, exactly?",red,blue,green,grey,D\n',
        [
            pair(
                "The following is a multiple choice question (with answers) about high school physics.\n\n"
                f"Which, exactly?\n{LETTERED}\nAnswer:",
                "D",
                choices=CHOICES,
                answer=3,
                group="high_school_physics",
                fields={"subject": "high school physics", "question": "Which, exactly?"},
            )
        ],
    ),
    # https://huggingface.co/datasets/cais/mmlu
    Case(
        "mmlu",
        "a.parquet",
        [{"question": "Which?", "subject": "virology", "choices": CHOICES, "answer": 1}],
        [
            pair(
                f"The following is a multiple choice question (with answers) about virology.\n\nWhich?\n{LETTERED}\nAnswer:",
                "B",
                choices=CHOICES,
                answer=1,
                group="virology",
            )
        ],
    ),
    # https://github.com/artidoro/qlora: data/mmlu/five_shot_mmlu_test.json and zero_shot_mmlu_test.json
    Case(
        "mmlu-qlora",
        "five_shot_mmlu_test.json",
        json.dumps([{"subject": "virology", "input": "Which?\nA. red\nAnswer:", "output": "C"}]),
        [pair("Which?\nA. red\nAnswer:", "C", choices=list("ABCD"), answer=2, group="virology")],
    ),
    Case(
        "mmlu-qlora",
        "zero_shot_mmlu_test.json",
        json.dumps([{"input": "Which?\nAnswer:", "output": "A"}]),
        [pair("Which?\nAnswer:", "A", choices=list("ABCD"), answer=0)],
    ),
    # https://allenai.org/data/arc: ARC-Easy-Test.jsonl; letters, or numbers
    Case(
        "arc",
        "ARC-Easy-Test.jsonl",
        lines({"id": "x", "question": {"stem": "Which?", "choices": SCIENCE}, "answerKey": "3"}),
        [pair(f"Question: Which?\n{LETTERED}\nAnswer:", "C", choices=CHOICES, answer=2, fields={"question": "Which?"})],
    ),
    # https://huggingface.co/datasets/allenai/ai2_arc
    Case(
        "arc",
        "a.parquet",
        [{"question": "Which?", "choices": {"text": ["red", "blue"], "label": ["A", "B"]}, "answerKey": "B"}],
        [pair("Question: Which?\nA. red\nB. blue\nAnswer:", "B", choices=["red", "blue"], answer=1)],
    ),
    # https://allenai.org/data/open-book-qa: the form of ARC; https://huggingface.co/datasets/allenai/openbookqa
    Case(
        "openbookqa",
        "test.jsonl",
        lines({"id": "x", "question": {"stem": "Which?", "choices": SCIENCE}, "answerKey": "1"}),
        [pair(f"Which?\n{LETTERED}\nAnswer:", "A", choices=CHOICES, answer=0)],
    ),
    Case(
        "openbookqa",
        "a.parquet",
        [{"question_stem": "Which?", "choices": {"text": ["red", "blue"], "label": ["A", "B"]}, "answerKey": "A"}],
        [pair("Which?\nA. red\nB. blue\nAnswer:", "A", choices=["red", "blue"], answer=0)],
    ),
    # https://github.com/rowanz/hellaswag: data/hellaswag_val.jsonl; the Hub's label is text
    Case(
        "hellaswag",
        "hellaswag_val.jsonl",
        lines(
            {
                "activity_label": "Baking",
                "ctx_a": "[header] Bread [title] Mix.",
                "ctx_b": "then",
                "endings": ["[step] stir  it.", "read."],
                "label": "1",
            }
        ),
        [
            pair(
                "Baking:  Bread. Mix. Then".replace("  ", " "),
                "read.",
                choices=[" stir it.", "read."],
                answer=1,
                fields={"activity": "Baking", "context": "Baking: Bread. Mix. Then"},
            )
        ],
    ),
    # https://github.com/allenai/winogrande: dev.jsonl
    Case(
        "winogrande",
        "dev.jsonl",
        lines(
            {"qID": "x", "sentence": "The cup broke as the _ fell.", "option1": "cup", "option2": "bag", "answer": "2"}
        ),
        [
            pair(
                "The cup broke as the _ fell.\nWhat does the _ stand for?\nA. cup\nB. bag\nAnswer:",
                "B",
                choices=["cup", "bag"],
                answer=1,
                fields={
                    "sentence": "The cup broke as the _ fell.",
                    "before": "The cup broke as the ",
                    "after": "fell.",
                },
            )
        ],
    ),
    # https://huggingface.co/datasets/baber/piqa
    Case(
        "piqa",
        "a.parquet",
        [{"goal": "To dry", "sol1": "wipe", "sol2": "rain", "label": 0}],
        [pair("To dry\nA. wipe\nB. rain\nAnswer:", "A", choices=["wipe", "rain"], answer=0)],
    ),
    # https://github.com/google-research-datasets/boolean-questions: dev.jsonl; SuperGLUE has label
    Case(
        "boolq",
        "dev.jsonl",
        lines(
            {"question": "is it so", "title": "T", "answer": True, "passage": "It is."},
            {"question": "is it", "label": 0, "passage": "No.", "idx": 1},
        ),
        [
            pair("It is.\nQuestion: is it so?\nAnswer:", "yes", choices=["no", "yes"], answer=1),
            pair("No.\nQuestion: is it?\nAnswer:", "no", choices=["no", "yes"], answer=0),
        ],
    ),
    # https://github.com/sylinrl/TruthfulQA: data/mc_task.json
    Case(
        "truthfulqa",
        "mc_task.json",
        json.dumps([TRUTHFUL]),
        [pair("Why?", "so", choices=["no", "so"], answer=1)],
    ),
    Case(
        "truthfulqa",
        "mc_task.json",
        json.dumps([TRUTHFUL]),
        [pair("Why?", "so", choices=["no", "so", "thus"], answer=1, right=[1, 2])],
        {"task": "mc2"},
    ),
    # https://huggingface.co/datasets/truthfulqa/truthful_qa
    Case(
        "truthfulqa",
        "a.parquet",
        [{"question": "Why?", "mc1_targets": {"choices": ["so", "no"], "labels": [1, 0]}}],
        [pair("Why?", "so", choices=["so", "no"], answer=0)],
    ),
    # https://github.com/hkust-nlp/ceval: val/logic_val.csv
    Case(
        "ceval",
        "logic_val.csv",
        "id,question,A,B,C,D,answer\n0,哪个？,red,blue,green,grey,B\n",
        [
            pair(
                f"以下是中国关于逻辑学的单项选择题，请选出其中的正确答案。\n\n哪个？\n{LETTERED}\n答案：",
                "B",
                choices=CHOICES,
                answer=1,
                group="logic",
                fields={"subject": "逻辑学", "question": "哪个？"},
            )
        ],
    ),
    # https://github.com/haonan-li/CMMLU: data/test/anatomy.csv, whose first column has no name
    Case(
        "cmmlu",
        "anatomy.csv",
        ",Question,A,B,C,D,Answer\n0,哪个？,red,blue,green,grey,D\n",
        [
            pair(
                f"以下是关于解剖学的单项选择题，请直接给出正确答案的选项。\n\n哪个？\n{LETTERED}\n答案：",
                "D",
                choices=CHOICES,
                answer=3,
                group="anatomy",
            )
        ],
    ),
    # https://huggingface.co/datasets/meta-math/MetaMathQA: an array
    Case(
        "metamathqa",
        "MetaMathQA-395K.json",
        json.dumps(
            [{"type": "GSM_Rephrased", "query": "1?", "original_question": "One?", "response": "The answer is: 1"}]
        ),
        [pair("1?", "The answer is: 1")],
    ),
    # https://huggingface.co/datasets/m-a-p/Code-Feedback
    Case("code-feedback", "a.jsonl", lines({"id": 7, "messages": TURNS}), [{"messages": TURNS}]),
    # https://huggingface.co/datasets/WizardLMTeam/WizardLM_evol_instruct_V2_196k: an array of ShareGPT's form
    Case(
        "wizardlm",
        "a.json",
        json.dumps(
            [
                {
                    "idx": "x",
                    "conversations": [{"from": "human", "value": "Write f"}, {"from": "gpt", "value": "def f(): …"}],
                }
            ]
        ),
        [{"messages": TURNS}],
    ),
    # the first release (70k): instruction and output
    Case("wizardlm", "a.json", json.dumps([{"instruction": "Write f", "output": "def f(): …"}]), [{"messages": TURNS}]),
    # https://huggingface.co/datasets/Open-Orca/FLAN
    Case(
        "flan",
        "a.parquet",
        [{"inputs": "Translate: rot", "targets": "red", "_task_name": "wmt"}],
        [pair("Translate: rot", "red")],
    ),
]

YES = {"choices": ["no", "yes"]}
FOLLOWS = "P.\nDoes this imply the following?\nH."
# TSV files are those of https://gluebenchmark.com/tasks, Parquet is https://huggingface.co/datasets/nyu-mll/glue
CASES += [
    Case("glue", file, content, [pair(prompt, response, **more)], {"task": task})
    for task, file, content, prompt, response, more in [
        (
            "cola",
            "train.tsv",
            'gj04\t1\t\tHe "runs.\n',
            'He "runs.\nIs this sentence grammatical?',
            "yes",
            {**YES, "answer": 1},
        ),
        (
            "sst2",
            "train.tsv",
            "sentence\tlabel\nso good \t1\n",
            "so good \nIs this negative or positive?",
            "positive",
            {"choices": ["negative", "positive"], "answer": 1},
        ),
        (
            "mrpc",
            "msr_paraphrase_train.txt",
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tA.\tB.\n",
            "A.\nB.\nDo these two sentences mean the same?",
            "no",
            {**YES, "answer": 0},
        ),
        (
            "qqp",
            "train.tsv",
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t1\t2\tA?\tB?\t1\n",
            "A?\nB?\nDo these two questions ask the same?",
            "yes",
            {**YES, "answer": 1},
        ),
        (
            "stsb",
            "train.tsv",
            "index\tsentence1\tsentence2\tscore\n0\tA.\tB.\t3.75\n",
            "A.\nB.\nHow similar are these two sentences, from 0 to 5?",
            "3.8",
            {},
        ),
        (
            "mnli",
            "train.tsv",
            "index\tsentence1\tsentence2\tgold_label\n0\tP.\tH.\tneutral\n",
            FOLLOWS,
            "neutral",
            {"choices": ["entailment", "neutral", "contradiction"], "answer": 1},
        ),
        (
            "mnli",
            "a.parquet",
            [{"premise": "P.", "hypothesis": "H.", "label": 2, "idx": 0}],
            FOLLOWS,
            "contradiction",
            {"choices": ["entailment", "neutral", "contradiction"], "answer": 2},
        ),
        (
            "qnli",
            "train.tsv",
            "index\tquestion\tsentence\tlabel\n0\tQ?\tS.\tnot_entailment\n",
            "Q?\nDoes the following answer this question?\nS.",
            "not_entailment",
            {"choices": ["entailment", "not_entailment"], "answer": 1},
        ),
        (
            "rte",
            "train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\tentailment\n",
            FOLLOWS,
            "entailment",
            {"choices": ["entailment", "not_entailment"], "answer": 0},
        ),
        (
            "wnli",
            "train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\tP.\tH.\t1\n",
            FOLLOWS,
            "entailment",
            {"choices": ["not_entailment", "entailment"], "answer": 1},
        ),
    ]
]


def write(path: Path, content: Any) -> Path:
    if isinstance(content, list):
        pq.write_table(pa.Table.from_pylist(content), path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.options.get('task', case.file)}")
def test_a_sample_in_the_sets_shape_gives_rows_in_ours(case: Case, tmp_path: Path) -> None:
    path = write(tmp_path / case.file, case.content)
    found = rows_of(open_dataset(case.name, path=path, **case.options))
    wanted = [{"fields": row.get("fields"), "group": "", **row} if "choices" in row else row for row in case.rows]
    for own, row in zip(found, wanted, strict=True):
        left_out = {"id"} | ({"fields"} if row.get("fields", 0) is None else set())
        assert {key: value for key, value in own.items() if key not in left_out} == {
            key: value for key, value in row.items() if key not in left_out
        }
    assert all(row["id"].startswith(f"{path}:") for row in found)
    assert all(conversation(row)[-1]["role"] == "assistant" for row in found), "fine-tuning can use them as they are"


def test_items_of_one_row_have_ids_of_their_own(tmp_path: Path) -> None:
    """Several items of one row have its id and a number."""
    asked = [{"question": f"{n}?", "choice": ["a", "b"], "answer": "a"} for n in range(2)]
    path = write(tmp_path / "a.json", json.dumps([[["text"], asked, "1"], [["text"], asked[:1], "2"]]))
    found = [row["id"] for row in rows_of(open_dataset("c3", path=path))]
    assert found == [f"{path}:1[0]#1", f"{path}:1[0]#2", f"{path}:1[1]"]


def test_every_set_and_every_task_has_a_sample() -> None:
    assert {case.name for case in CASES} == {*SETS, "glue", "truthfulqa"}
    assert {case.options["task"] for case in CASES if case.name == "glue"} == set(TASKS)
    assert all(each.source.startswith("https://") and each.licence for each in SETS.values())
    assert [each.name for each in SETS.values() if not each.hub] == ["mmlu-qlora"]


def test_another_prompt_uses_the_fields_of_the_set(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines({"question": "1 + 1?", "answer": "2"}))
    assert open_dataset("gsm8k", path=path, prompt="Q: {question}\nA:").row(0)["prompt"] == "Q: 1 + 1?\nA:"
    with pytest.raises(DataError, match=r"a\.jsonl:1: \{questoin\} of dataset.prompt is .*; texts found: 'question', "):
        open_dataset("gsm8k", path=path, prompt="{questoin}").row(0)
    with pytest.raises(DataError, match=r"Leave dataset\.prompt out"):
        open_dataset("hh-rlhf", path=path, prompt="{question}")


RECLOR = {"context": "It rains.", "question": "Which?", "answers": CHOICES, "label": 2}
FAULTS = {
    "another set": (
        "reclor",
        {"text": "a"},
        r":1: not a row of reclor \(https://whyu\.me/reclor\): no field 'context'; fields found: 'text'\. Give",
    ),
    "no label": (
        "reclor",
        {**RECLOR, "label": -1},
        r":1: not a row of reclor .*: its answer -1 is none of its 4 choices",
    ),
    "a letter too far": ("reclor", {**RECLOR, "label": "E"}, r"its answer 'E' is none of its 4 choices"),
    "no answer": ("reclor", {**RECLOR, "label": None}, r"its answer is None, neither an index nor a letter"),
    "choices that are no list": ("reclor", {**RECLOR, "answers": 4}, r"not a row of reclor"),
    "a context that is no text": ("reclor", {**RECLOR, "context": [1]}, r"a question or choice is no text"),
    "a missing column": ("gsm8k", {"question": "1?"}, r":1: not a row of gsm8k .*: no field 'answer'; fields"),
    "a number for text": (
        "gsm8k",
        {"question": "1?", "answer": 2},
        r":1: not a row of gsm8k .*: field 'answer' is of type int",
    ),
    "two humans": ("chip2", {"text": "<human>: a\n<bot>: b\n<human>: c"}, r"not one '<human>: …' and one '<bot>: …'"),
    "other first turns": (
        "hh-rlhf",
        {"chosen": HH + "a", "rejected": HH.replace("Hi", "Ho") + "b"},
        r"differ before their last answer",
    ),
    "no dialogue": ("hh-rlhf", {"chosen": "a", "rejected": "b"}, r"a dialogue has to begin with 'Human:'"),
    "no last answer": (
        "hh-rlhf",
        {"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: a"},
        r"turns are not Human, Assistant",
    ),
    "sides of different prompts": (
        "ultrafeedback",
        {**ULTRAFEEDBACK, "rejected": [{"role": "user", "content": "Other?"}, {"role": "assistant", "content": "No."}]},
        r":1: not a row of ultrafeedback .*chosen and rejected are not one prompt and an answer each",
    ),
    "no better answer": (
        "safe-rlhf",
        {"prompt": "How?", "response_0": "So.", "response_1": "No.", "better_response_id": None},
        r"None says of neither answer that it is the better one; it is 0 or 1",
    ),
    "an unknown speaker": ("wizardlm", {"conversations": [{"from": "bing", "value": "x"}]}, r"no field 'bing'"),
    "no turns": ("code-feedback", {"messages": []}, r"a turn is no text, or there is none"),
    "a turn without text": ("code-feedback", {"messages": [{"role": "user", "content": None}]}, r"a turn is no text"),
    "an answer that is no choice": (
        "c3",
        [["a"], [{"question": "q", "choice": ["x"], "answer": "y"}], "1"],
        r":1: .*not a row of c3",
    ),
    "no label of the task": (
        "glue",
        {"sentence": "a", "label": -1},
        r"label -1 is none of negative, positive; the test split has none",
    ),
    "a word that is no label": ("glue", {"sentence": "a", "label": "good"}, r"not a row of glue sst2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_is_not_of_the_set_is_named_with_what_to_do(fault: str, tmp_path: Path) -> None:
    name, row, message = FAULTS[fault]
    path = write(tmp_path / "a.json", json.dumps([row]))
    with pytest.raises(DataError, match=message) as raised:
        rows_of(open_dataset(name, path=path))
    assert str(raised.value).startswith(f"{path}:1: ")


MORE_FAULTS = {
    "a science answer that is no label": (
        "arc",
        {"question": {"stem": "q", "choices": SCIENCE}, "answerKey": ""},
        r"its answer '' is none of its 4 choices; the test split may have none",
    ),
    "a sentence without a gap": (
        "winogrande",
        {"sentence": "No gap.", "option1": "a", "option2": "b", "answer": "1"},
        r"its sentence has no gap '_'",
    ),
    "an answer that winogrande's test split hides": (
        "winogrande",
        {"sentence": "A _.", "option1": "a", "option2": "b", "answer": ""},
        r"not a row of winogrande",
    ),
    "no right choice": (
        "truthfulqa",
        {"question": "q", "mc1_targets": {"a": 0, "b": 0}},
        r"none of its 2 choices of mc1 is right",
    ),
    "no label beside the rows": (
        "piqa",
        {"goal": "g", "sol1": "a", "sol2": "b"},
        r"not a row of piqa .*no field 'label'",
    ),
    "an answer that is no truth value": (
        "boolq",
        {"question": "q", "passage": "p", "answer": "x"},
        r"neither true nor",
    ),
}


@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_a_row_of_multiple_choice_without_an_answer_is_named(fault: str, tmp_path: Path) -> None:
    name, row, message = MORE_FAULTS[fault]
    path = write(tmp_path / "a.jsonl", lines(row))
    with pytest.raises(DataError, match=message):
        rows_of(open_dataset(name, path=path))


def test_a_subject_is_that_of_the_file_also_where_this_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "abstract_algebra_test.csv").write_text("What?,a,b,c,d,A\n")
    here, copy = (rows_of(open_dataset("mmlu", path=f"{begin}{tmp_path}/test"))[0] for begin in ("", "file://"))
    assert copy["group"] == "abstract_algebra"
    assert {**copy, "id": ""} == {**here, "id": ""}


def test_a_subject_is_the_subset_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    row = {"id": 0, "question": "哪个？", "A": "red", "B": "blue", "C": "green", "D": "grey", "answer": "B"}
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **named: datasets.Dataset.from_list([row]))
    found = open_dataset("ceval", subset="logic", split="val").row(0)
    assert found["id"] == "ceval/ceval-exam:logic[val]:1"
    assert found["group"] == "logic"
    assert found["prompt"].startswith("以下是中国关于逻辑学的单项选择题")


def test_labels_of_piqa_are_read_from_the_file_beside(tmp_path: Path) -> None:
    row = {"goal": "To dry", "sol1": "wipe", "sol2": "rain"}
    path = write(tmp_path / "valid.jsonl", lines(row, row))
    (tmp_path / "valid-labels.lst").write_text("1\n0\n")
    assert [each["answer"] for each in rows_of(open_dataset("piqa", path=path))] == [1, 0]
    (tmp_path / "valid-labels.lst").write_text("1\n")
    with pytest.raises(DataError, match=r"valid-labels\.lst has 1 labels, and there are 2 rows"):
        open_dataset("piqa", path=path)


@pytest.mark.parametrize("place", ["valid.jsonl", "", "*.jsonl"], ids=["file", "folder", "pattern"])
def test_labels_of_piqa_behind_an_address_are_fetched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    row = {"goal": "To dry", "sol1": "wipe", "sol2": "rain"}
    (tmp_path / "piqa").mkdir()
    write(tmp_path / "piqa/valid.jsonl", lines(row, row))
    (tmp_path / "piqa/valid-labels.lst").write_text("1\n0\n")
    found = rows_of(open_dataset("piqa", path=f"file://{tmp_path}/piqa/{place}"))
    assert [each["answer"] for each in found] == [1, 0]


def test_a_set_that_is_not_on_the_hub_asks_for_its_files() -> None:
    with pytest.raises(DataError, match=r"mmlu-qlora is not on the Hub\. Set dataset\.path"):
        open_dataset("mmlu-qlora")


def test_a_file_without_any_item_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines({"instances": []}))
    with pytest.raises(DataError, match=r"a\.jsonl:1 and all others have no item of unnatural-instructions"):
        open_dataset("unnatural-instructions", path=path)


def test_a_file_of_no_known_format_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.xls has suffix '\.xls', which does not tell its format"):
        open_dataset("alpaca", path=write(tmp_path / "a.xls", "x"))
