"""Pairs of a prediction and its references, on which metrics are compared with others."""

from __future__ import annotations

import random

WORDS = [
    "the",
    "a",
    "An",
    "fox",
    "jumps",
    "over",
    "$7.50",
    "1,000",
    "dog.",
    "and\tthen",
    "“it”",
    "rests,",
    "don't",
    "U.S.",
    "naïve",
    "東京",
    "は",
    "大きい",
    "-3",
    "<b>",
    "😀",
    "שלום",
]

NASTY_TEXTS = [
    "",
    " ",
    "\n\n",
    ".",
    "the",
    "fox",
    "😀😀 👩‍👩‍👧 e\u0301",
    "今天天气很好，我们去公园。",
    "今天 天气 不错",
    "שלום עולם \u202bמימין\u202c",
    "مرحبا بالعالم ٣٤",
    "a\x00b\ufeffc\u00a0d",
    "line one\nline two\n\nline three .",
    "#### 7",
    "#### $1,234.00.",
    "the answer is , and .",
    "-0.50",
    "9-2",
    "İstanbul ß ﬁ Ⅷ",
    "word " * 20_000,
]
"""Empty, of one token, emoji, Chinese, right to left, 100 kB, numbers of many forms."""


def random_pairs(count: int = 200) -> list[tuple[str, list[str]]]:
    """Texts of a few words; predictions are often near a reference."""
    draws = random.Random(3)
    pairs = []
    for _ in range(count):
        references = [_text(draws) for _ in range(draws.choice([1, 1, 1, 3]))]
        near = draws.choice(references).split(" ")
        if draws.random() < 0.7 and near:
            near[draws.randrange(len(near))] = draws.choice(WORDS)
            pairs.append((" ".join(near), references))
        else:
            pairs.append((_text(draws), references))
    return pairs


def _text(draws: random.Random) -> str:
    return " ".join(draws.choice(WORDS) for _ in range(draws.randrange(1, 12)))


def nasty_pairs() -> list[tuple[str, list[str]]]:
    """Each nasty text against itself, its neighbours and a short one; never two of 100 kB, for which LCS needs 100 GB."""
    pairs = []
    for at, text in enumerate(NASTY_TEXTS):
        other = NASTY_TEXTS[(at + 1) % len(NASTY_TEXTS)]
        if len(text) < 1000:
            pairs.append((text, [text]))
        pairs += [(text, ["the fox jumps"]), (text, [other] if len(other) < 1000 else ["fox"])]
    return pairs


ALL = [*random_pairs(), *nasty_pairs()]
assert len(nasty_pairs()) >= 50
