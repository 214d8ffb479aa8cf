"""Metrics of texts give the figures of the libraries that they stand for, on ordinary and on nasty texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from pairs import ALL

from mt_core import DataError, MtConfig, UsageError
from mt_plugin_evals.metrics.corpus import BleuConfig, ChrfConfig, TerConfig, build_bleu, build_chrf, build_ter
from mt_plugin_evals.metrics.llama_factory import LlamaFactory
from mt_plugin_evals.metrics.rouge import Characters, Rouge, RougeConfig
from mt_plugin_evals.metrics.squad import ExactMatch, WordF1
from mt_plugin_evals.offers.metrics import METRICS

ROW = {"id": "rows.jsonl:1"}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="_"), max_size=60)


def squad(prediction: str, references: list[str]) -> tuple[float, float]:
    """Exact match and F1 of lm_eval's own copy of the script, for texts that leave something to compare."""
    from lm_eval.tasks.super_glue.record.t5_utils import squad_em_agg, squad_f1_agg

    items = [(prediction, f"0_{reference}") for reference in references]
    return float(squad_em_agg(items[:1] if len(items) == 1 else items)), float(squad_f1_agg(items))


def check_squad(prediction: str, references: list[str]) -> None:
    """SQuAD 2.0 leaves out references of which nothing is left (``get_raw_scores``), and the copy is of 1.1."""
    from lm_eval.tasks.super_glue.record.t5_utils import normalize_squad

    exact, f1 = squad(prediction, [each for each in references if normalize_squad(each)] or [""])
    assert ExactMatch(MtConfig()).score(prediction, references, ROW) == {"exact_match": exact}
    empty = not normalize_squad(prediction) and not any(map(normalize_squad, references))
    assert WordF1(MtConfig()).score(prediction, references, ROW) == {"word_f1": pytest.approx(1.0 if empty else f1)}


@pytest.mark.parametrize(("prediction", "references"), ALL, ids=range(len(ALL)))
def test_exact_match_and_word_f1_equal_the_script_of_squad(prediction: str, references: list[str]) -> None:
    pytest.importorskip("lm_eval")
    check_squad(prediction, references)


@pytest.mark.parametrize(("references", "score"), [(["The", "The Who"], 0.0), (["."], 1.0), (["", "fox"], 0.0)])
def test_no_answer_is_right_only_where_no_reference_says_anything(references: list[str], score: float) -> None:
    """As in SQuAD 2.0: an article by itself is no answer."""
    assert ExactMatch(MtConfig()).score("", references, ROW) == {"exact_match": score}
    assert WordF1(MtConfig()).score("", references, ROW) == {"word_f1": score}


@given(prediction=TEXTS, references=st.lists(TEXTS, min_size=1, max_size=3))
def test_exact_match_and_word_f1_equal_the_script_of_squad_for_any_text(prediction: str, references: list[str]) -> None:
    pytest.importorskip("lm_eval")
    check_squad(prediction, references)


@pytest.mark.parametrize("stemmer", [False, True])
def test_rouge_equals_rouge_score(stemmer: bool) -> None:
    scorers = pytest.importorskip("rouge_score.rouge_scorer")
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    theirs, ours = scorers.RougeScorer(kinds, use_stemmer=stemmer), Rouge(RougeConfig(stemmer=stemmer))
    compared = 0
    for prediction, references in ALL:
        try:
            found = ours.score(prediction, references, ROW)
        except DataError:
            continue  # a reference without English words, see below
        compared += 1
        scores = [theirs.score(reference, prediction) for reference in references]
        for kind in kinds:
            best = max(score[kind].fmeasure for score in scores)
            assert found[kind.lower()] == pytest.approx(best)
    assert compared > 200


def test_rouge_of_chinese_is_over_characters_where_asked_and_refused_where_every_text_would_get_0() -> None:
    scorers = pytest.importorskip("rouge_score.rouge_scorer")
    text, near = "今天天气很好。", "今天天气不好。"
    assert scorers.RougeScorer(["rouge1"]).score(text, text)["rouge1"].fmeasure == 0
    with pytest.raises(DataError, match=r"rows.jsonl:1: .*'今天天气很好。'.*tokenizer: characters"):
        Rouge(RougeConfig()).score(text, [text], ROW)
    ours = Rouge(RougeConfig(tokenizer="characters"))
    assert set(ours.score(text, [text], ROW).values()) == {1.0}
    theirs = scorers.RougeScorer(["rouge1", "rougeL"], tokenizer=Characters()).score(text, near)
    assert ours.score(near, [text], ROW)["rouge1"] == theirs["rouge1"].fmeasure == pytest.approx(6 / 7)
    assert "characters" in ours.signature


def test_rouge_of_chinese_words_is_that_of_jieba() -> None:
    jieba = pytest.importorskip("jieba")
    assert jieba.lcut("今天天气很好") == ["今天天气", "很", "好"]
    found = Rouge(RougeConfig(tokenizer="jieba")).score("今天天气 很差", ["今天天气很好"], ROW)
    assert found["rouge1"] == pytest.approx(2 * (1 / 2 * 1 / 3) / (1 / 2 + 1 / 3))


CORPUS = {
    "bleu": (build_bleu, BleuConfig(), "BLEU", {}),
    "bleu, zh": (build_bleu, BleuConfig(tokenizer="zh"), "BLEU", {"tokenize": "zh"}),
    "bleu, char": (build_bleu, BleuConfig(tokenizer="char"), "BLEU", {"tokenize": "char"}),
    "bleu, intl": (
        build_bleu,
        BleuConfig(tokenizer="intl", lowercase=True),
        "BLEU",
        {"tokenize": "intl", "lowercase": True},
    ),
    "chrf": (build_chrf, ChrfConfig(), "CHRF", {}),
    "chrf++": (build_chrf, ChrfConfig(words=2), "CHRF", {"word_order": 2}),
    "ter": (build_ter, TerConfig(), "TER", {}),
    "ter, asian": (
        build_ter,
        TerConfig(normalized=True, asian_support=True),
        "TER",
        {"normalized": True, "asian_support": True},
    ),
}


def library_score(name: str, pairs: list[tuple[str, list[str]]]) -> Any:
    """sacrebleu's own call over a corpus; a row with fewer references has none for the others."""
    metrics = pytest.importorskip("sacrebleu.metrics")
    most = max(len(references) for _, references in pairs)
    columns = [[references[at] if at < len(references) else None for _, references in pairs] for at in range(most)]
    metric = getattr(metrics, CORPUS[name][2])(**CORPUS[name][3])
    return metric.corpus_score([prediction for prediction, _ in pairs], columns), metric


@pytest.mark.parametrize("name", CORPUS)
def test_figures_over_a_corpus_equal_sacrebleu_and_keep_its_signature(name: str) -> None:
    build, config, _, _ = CORPUS[name]
    pairs = [pair for pair in ALL if "ter" not in name or len(pair[0]) < 1000]  # its edit distance takes minutes
    expected, metric = library_score(name, pairs)
    ours = build(config)
    rows = [ours.score(prediction, references, ROW) for prediction, references in pairs]
    (figure, value), *errors = ours.total(rows).items()
    assert (figure, value, errors) == (name.partition(",")[0].strip("+"), pytest.approx(expected.score, rel=1e-9), [])
    assert ours.signature == str(metric.get_signature())


@given(pairs=st.lists(st.tuples(TEXTS, TEXTS.map(lambda text: [text])), min_size=1, max_size=5))
@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_figures_over_a_corpus_equal_sacrebleu_for_any_text(name: str, pairs: list[tuple[str, list[str]]]) -> None:
    expected, _ = library_score(name, pairs)
    ours = CORPUS[name][0](CORPUS[name][1])
    rows = [ours.score(prediction, references, ROW) for prediction, references in pairs]
    assert ours.total(rows)[name] == pytest.approx(expected.score, rel=1e-9)


def test_rows_of_bleu_have_their_own_score_and_the_total_is_no_mean_of_them() -> None:
    pytest.importorskip("sacrebleu")
    ours = build_bleu(BleuConfig(bootstrap=50))
    pairs = [
        ("the quick brown fox jumps", ["the quick brown fox jumps"]),
        ("it rests under a", ["it rests under an old tree"]),
    ]
    rows = [ours.score(prediction, references, ROW) for prediction, references in pairs]
    total = ours.total(rows)
    assert rows[0]["bleu"] == pytest.approx(100)
    assert total["bleu"] != pytest.approx((rows[0]["bleu"] + rows[1]["bleu"]) / 2)
    assert total["bleu_stderr"] > 0
    assert ours.total(rows) == total


def test_llama_factorys_figures_are_under_its_own_name_and_those_of_its_formulas() -> None:
    """``src/llamafactory/train/sft/metric.py``, written down plainly."""
    jieba, chinese = pytest.importorskip("jieba"), pytest.importorskip("rouge_chinese")
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    pairs = [("今天天气很好", "今天天气不好"), ("the fox", "the dog rests"), ("", "no"), ("x", "x")]
    ours = LlamaFactory(MtConfig())
    for prediction, label in pairs:
        expected = {"rouge-1": 0.0, "rouge-2": 0.0, "rouge-l": 0.0}
        hypothesis, reference = list(jieba.cut(prediction)), list(jieba.cut(label))
        if len(" ".join(hypothesis).split()) != 0:
            scores = chinese.Rouge().get_scores(" ".join(hypothesis), " ".join(reference))[0]
            expected = {kind: round(value["f"] * 100, 4) for kind, value in scores.items()}
        bleu = sentence_bleu([list(label)], list(prediction), smoothing_function=SmoothingFunction().method3)
        wanted = {kind.replace("-", "_"): value for kind, value in expected.items()} | {"bleu_4": round(bleu * 100, 4)}
        assert ours.score(prediction, [label], ROW) == wanted
    with pytest.raises(DataError, match="takes one reference, and the row has 2"):
        ours.score("x", ["x", "y"], ROW)


NEEDS = {
    "rouge": ("rouge_score", "metrics"),
    "bleu": ("sacrebleu", "metrics"),
    "chrf": ("sacrebleu", "metrics"),
    "ter": ("sacrebleu", "metrics"),
    "classification": ("sklearn", "metrics"),
    "llama-factory": ("jieba", "chinese"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_library_that_is_not_installed_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, extra = NEEDS[name]
    for module in [each for each in sys.modules if each.partition(".")[0] == gone]:
        monkeypatch.delitem(sys.modules, module)

    class Missing:
        @staticmethod
        def find_spec(wanted: str, path: Any = None, target: Any = None) -> None:
            if wanted.partition(".")[0] == gone:
                raise ModuleNotFoundError(f"No module named {wanted!r}")

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    component = next(each for each in METRICS if each.name == name)
    options = {"labels": ("yes", "no")} if name == "classification" else {}
    with pytest.raises(
        UsageError, match=rf"metric {name} needs the library {gone}.*pip install 'mt-plugin-evals\[{extra}\]'"
    ):
        component.build(component.config(**options))


def test_words_of_japanese_say_how_their_library_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = pytest.importorskip("sacrebleu.tokenizers.tokenizer_ja_mecab")
    monkeypatch.setattr(tokenizer, "MeCab", None)
    with pytest.raises(UsageError, match=r"ja-mecab of the metric bleu needs MeCab .* pip install 'sacrebleu\[ja\]'"):
        build_bleu(BleuConfig(tokenizer="ja-mecab"))
