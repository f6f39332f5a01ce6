"""Settings of BM25: what a generation keeps of them, iterative BM25 against its definition, and `aeenc tune`."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from aeenc.cli.main import app
from aeenc.errors import DataLoss, FailedPrecondition
from aeenc.evaluation import load_data
from aeenc.trees import Dataset
from services.index.lexical.bm25 import SETTINGS, LexicalIndex, lemmatizer, words_of, write_lexical
from services.index.values import LexicalSettings
from services.store.artifacts import ArtifactStore
from services.tuning.words import Measured, measured_on, tune

SAMPLE = Path(__file__).parents[3] / "data" / "sample"
TEXTS = [candidate.text for candidate in Dataset.load(SAMPLE).candidates()]
QUERIES = [query.text for query in Dataset.load(SAMPLE).queries("train")][3:6]  # none has a tie that float32 breaks
OTHER = LexicalSettings(k1=0.9, b=0.4, words="words", first_scale=1.0, downscale=2.0, growth=1.5)


def opened(store: ArtifactStore, settings: LexicalSettings, damage=lambda path: None) -> LexicalIndex | None:
    with store.writer("generation", "generations/x") as writer:
        write_lexical(writer.path, TEXTS, settings)
        damage(writer.path)
        return LexicalIndex.open(writer.commit({}, id_prefix="g"), len(TEXTS))


def by_definition(text: str, k: int, settings: LexicalSettings) -> list[int]:
    """Iterative BM25 (Chia et al. 2020) over dictionaries: rounds of 1, growth, growth^2 … premises, ranked by cosine.

    Scores that are equal to five digits tie, and go to the earlier premise.
    """
    documents = words_of(TEXTS, settings)
    average = sum(map(len, documents)) / len(documents)

    occurrences = Counter(word for document in documents for word in set(document))

    def idf(word: str) -> float:
        containing = occurrences[word]
        return math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))

    def weights(document: list[str], length: float) -> dict[str, float]:
        norm = settings.k1 * (1 - settings.b + settings.b * length / average)
        return {word: idf(word) * (n := document.count(word)) / (n + norm) for word in document}

    def length(vector: dict[str, float]) -> float:
        return math.sqrt(sum(weight**2 for weight in vector.values())) or 1.0

    vectors = [weights(document, len(document)) for document in documents]
    known = {word for document in documents for word in document}
    query = weights([word for word in words_of([text], settings)[0] if word in known], average)
    found: list[int] = []
    size, scale = 1.0, settings.first_scale
    while len(found) < k:
        scores = {
            n: round(sum(query.get(word, 0.0) * weight for word, weight in vector.items()) / length(vector), 5)
            for n, vector in enumerate(vectors)
            if n not in found
        }
        near = sorted((n for n, score in scores.items() if score > 0), key=lambda n: (-scores[n], n))
        taken = near[: min(int(size), k - len(found))]
        if not taken:
            break
        found += taken
        for n in taken:
            for word, weight in vectors[n].items():
                query[word] = max(query.get(word, 0.0), weight / scale)
        size, scale = size * settings.growth, scale * settings.downscale
    return found


@pytest.mark.parametrize("settings", [LexicalSettings(), OTHER, replace(OTHER, words="lemmas", growth=3.0)])
def test_iterative_bm25_is_its_definition(settings: LexicalSettings):
    pytest.importorskip("simplemma")
    index = LexicalIndex.of(TEXTS, settings)
    for text in QUERIES:
        found = index.iterate(index.terms(text), 25, None).ordinals.tolist()
        assert found == by_definition(text, 25, settings)


@pytest.mark.parametrize("settings", [LexicalSettings(), OTHER])
def test_a_generation_is_asked_with_the_settings_that_it_was_built_with(
    artifact_store: ArtifactStore, settings: LexicalSettings
):
    index, fresh = opened(artifact_store, settings), LexicalIndex.of(TEXTS, settings)
    assert index is not None
    assert index.settings == settings
    for text in QUERIES:
        first, second = [one.iterate(one.terms(text), 10, None) for one in (index, fresh)]
        assert (first.ordinals.tolist(), first.scores.tolist()) == (second.ordinals.tolist(), second.scores.tolist())


def test_settings_that_cannot_be_read_are_named(artifact_store: ArtifactStore):
    with pytest.raises(DataLoss, match=r"lexical\.settings\.json cannot be read"):
        opened(artifact_store, OTHER, lambda path: (path / SETTINGS).write_text("{}"))


def test_lemmas_are_words_of_the_dictionary():
    pytest.importorskip("simplemma")
    assert words_of(["Mice ate a running mouse"], LexicalSettings(words="lemmas")) == [["mouse", "eat", "run", "mouse"]]


def test_lemmas_without_their_library_name_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "simplemma", None)
    lemmatizer.cache_clear()
    with pytest.raises(FailedPrecondition, match="index-lemmas"):
        words_of(["mice"], LexicalSettings(words="lemmas"))


def test_recall_is_the_mean_over_grades_and_binary_gold_is_measured_by_map():
    rated = dict(load_data(SAMPLE / "textgraphs").queries("dev"))
    measured = measured_on(SAMPLE / "textgraphs", "dev", "bm25", 0, 0)
    assert (measured.graded, len(measured.queries)) == (True, len(rated))
    index = LexicalIndex.of(measured.texts)
    shares: dict[float, list[bool]] = {}
    for text, grades in rated.items():
        scores = index.scores(index.terms(text))
        for fact, grade in grades.items():
            if grade:
                shares.setdefault(grade, []).append(bool(scores[measured.texts.index(fact)] > 0))
    assert measured.value(LexicalSettings()) == pytest.approx(np.mean([np.mean(own) for own in shares.values()]))
    own = Measured(
        ["iron is a metal", "copper is a metal", "ice is cold"], [("a metal", {"copper is a metal": 1.0})], "bm25"
    )
    assert (own.metric, own.value(LexicalSettings())) == ("MAP", 0.5)


def test_a_query_does_not_find_its_own_text():
    texts = ["iron is a metal", "copper is a metal"]
    assert Measured(texts, [(texts[0], {texts[1]: 1.0})], "bm25").value(LexicalSettings()) == 1.0


@pytest.mark.parametrize("ranker", ["bm25", "iterative"])
@pytest.mark.parametrize(
    ("told", "value"),
    [("", 0.25), (', "before": "d3"', 0.5), (', "only": ["d4", "d2"]', 0.5), (', "only": ["d2"], "before": "d3"', 1.0)],
)
def test_only_what_is_accessible_to_a_query_is_ranked_for_it(tmp_path: Path, ranker, told: str, value: float):
    facts = ["iron metal", "a metal such as iron is mined", "iron metal iron", "metal iron metal"]
    lines = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(facts, start=1)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    (tmp_path / "queries.jsonl").write_text(f'{{"_id": "q", "text": "iron is a metal"{told}}}')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\td2\t1\n")
    assert measured_on(tmp_path, "dev", ranker, 0, 0).value(LexicalSettings()) == value


def test_tuning_is_never_worse_than_the_defaults_and_repeats_itself():
    pytest.importorskip("optuna")
    measured = measured_on(SAMPLE, "train", "iterative", 4, 3)
    found = tune(measured, trials=4, seed=1)
    assert measured.value(found) >= measured.value(LexicalSettings())
    assert tune(measured, trials=4, seed=1) == found


def test_a_split_to_check_on_that_is_not_there_is_named_before_anything_is_tried(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr("services.tuning.words.tune", lambda *_, **__: pytest.fail("tried"))
    ended = CliRunner().invoke(app, ["--json", "tune", "--data", str(SAMPLE), "--check", "nowhere"])
    assert "nowhere" in ended.output


def test_the_command_prints_what_the_index_reads(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("optuna")
    words = ["tune", "--data", str(SAMPLE), "--check", "dev", "--trials", "12", "--queries", "10", "--ranker", "bm25"]
    ended = CliRunner().invoke(app, ["--json", *words])
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    for name, value in told["environment"].items():
        monkeypatch.setenv(name, str(value))
    from services.index.settings import IndexSettings

    assert asdict(IndexSettings().engines.lexical) == pytest.approx(told["settings"])
    assert set(told["splits"]) == {"train", "dev"}
