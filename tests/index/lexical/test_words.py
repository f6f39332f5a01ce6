"""The words of texts: normalised, single letters and digits too, and of scripts without blanks."""

from __future__ import annotations

import pytest

from aeenc import Fusion
from services.index.lexical.bm25 import words_of
from services.index.values import LexicalSettings
from support.worlds.index_world import premise

SUBJECTS = ["铁", "冰", "水", "火", "木头", "月亮", "太阳", "植物", "动物", "磁铁"]
PREDICATES = ["是一种固体", "可以融化成液体", "需要阳光才能生长", "会吸引金属", "在夜晚反射光"]
CHINESE = [subject + predicate for subject in SUBJECTS for predicate in PREDICATES]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Vitamin C, type O", ["vitamin", "c", "type", "o"]),
        ("2 leaves are 3.14 or 1,000", ["2", "leaves", "3.14", "1,000"]),
        ("animal's aren't we\u2019ll d'eau", ["animal", "aren", "we", "d", "eau"]),
        ("cafe\u0301 \uff21\uff22 ﬁre x_1", ["café", "ab", "fire", "x_1"]),
        ("हिन्दी में पानी", ["हिन्दी", "में", "पानी"]),
        ("물은 차갑다", ["물은", "차갑다"]),
        ("水是湿", ["水", "是", "湿", "水是", "是湿"]),
        ("冰ice水", ["冰", "ice", "水"]),
        ("ｶﾞｽ", ["ガ", "ス", "ガス"]),
        ("น้ำ", ["น้ํ", "า", "น้ํา"]),
        ("… 🙂 a the", []),
    ],
)
def test_texts_are_split_into_words(text: str, words: list[str]):
    assert words_of([text], LexicalSettings(words="words")) == [words]


def test_ascii_is_split_as_other_texts_are():
    texts = ["It's 3.14 m/s, x_1 & H2O: 1,000 C++ don't", "0.5% of U.S. 1,2,3 a.b"]
    beside = [f"{text} ж" for text in texts]
    assert [[*words, "ж"] for words in words_of(texts)] == words_of(beside)


@pytest.mark.parametrize("mode", ["lexical", "iterative_lexical", "hybrid"])
async def test_each_of_fifty_chinese_facts_is_found_by_its_words(index, mode: str):
    built = await index.client.build("zh", [premise(f"p{n}", text) for n, text in enumerate(CHINESE)])
    assert "50 of 50 premises are not in English" in built.notes[0]
    asked = [f"为什么{subject}{predicate}呢" for subject in SUBJECTS for predicate in PREDICATES]
    fusion = Fusion(lexical_weight=1.0) if mode == "hybrid" else None
    found = await index.client.retrieve("zh", asked, k=1, mode=mode, fusion=fusion)
    assert [hits[0].text for hits in found] == CHINESE


async def test_single_letters_and_digits_tell_facts_apart(index):
    facts = [
        "vitamin K is found here",
        "vitamin C is found here",
        "a clover has 2 leaves",
        "a clover has 3 leaves",
        "…",
    ]
    built = await index.client.build("letters", [premise(f"p{n}", text) for n, text in enumerate(facts)])
    assert [note.split(";")[0] for note in built.notes] == ["1 of 5 premises have no words"]
    asked = ["which vitamin is C", "clover of 3 leaves"]
    found = await index.client.retrieve("letters", asked, k=1, mode="lexical")
    assert [hits[0].text for hits in found] == [facts[1], facts[3]]
    assert not (await index.client.build("plain", [premise("p", facts[0])])).notes
