"""Judgements with odd ids and texts, drawn from a seed."""

from __future__ import annotations

import random

from aeenc import values
from aeenc.exports import judgements_of
from aeenc.trees import content_id

TEXTS = [
    "ice is cold",
    ' "hot" air',
    '"quoted"',
    "tab\there",
    "two\nlines",
    "a\u2028b\u0085c",
    "\ufeffmark",
    "日本 🙂",
    "> 5",
    "< 5",
    "x" * 5000,
    "cafe\u0301",
    "café",
    "back\\slash",
    "a, b; c | d",
    "\x1b[31mred",
    "trailing ",
    "0",
    "nan",
]
IDS = ["1", "01", "a b", 'q"uote', '"', "tab\tid", "", " ", "\u00a0", "\x07", "é", "#", "-", "nan", "a/b", "x\u2028y"]


def draw(number: int) -> tuple[list[tuple[str, str]], list[values.Pair]]:
    """Draws a corpus, (id, text), and pairs over it: ids that have moved to another text, contradictions, grades."""
    rng = random.Random(number)
    texts = rng.sample(TEXTS, rng.randint(1, 8))
    ids = [*IDS, content_id(texts[0]), content_id(texts[-1])]
    corpus = {rng.choice(ids): text for text in texts}
    one = values.Pair(query="q", premise="one", sign=values.PairSign.POSITIVE)
    pairs = [one] + [
        values.Pair(
            query=rng.choice(TEXTS[:6]),
            premise_id=rng.choice(ids),
            premise=rng.choice(texts),
            sign=rng.choice([values.PairSign.POSITIVE, values.PairSign.NEGATIVE, values.PairSign.SKIPPED]),
            provenance=values.Provenance(grade=rng.choice([0, 0, 1, 2, 100])),
        )
        for _ in range(rng.randint(1, 12))
    ]
    return list(corpus.items()), pairs


def graded(pairs: list[values.Pair]) -> dict[str, dict[str, int]]:
    """The grade of each judged premise by query, both as texts: 0 was refused."""
    by_query, _ = judgements_of(pairs, grades=True)
    return {
        query: {text: int(one.grades.get(text, 1)) for text in one.positives} | dict.fromkeys(one.negatives, 0)
        for query, one in by_query.items()
        if one.positives or one.negatives
    }
