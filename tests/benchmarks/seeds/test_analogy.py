"""Answer selection by analogy on the sample: which questions are asked, by which vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.seeds.analogy import NUMBERS, SAMPLE, Selection, averages, latent, recurrent, selections_of
from services.trainer.models.word_vectors import WordVectors

HEAD = "QuestionID\tQuestion\tSentence\tLabel\n"


def test_the_folders_of_a_directory_are_data_sets_and_so_is_it(tmp_path: Path):
    assert [one.name for one in selections_of(SAMPLE, "test", NUMBERS)] == ["trecqa", "wikiqa"]
    assert [one.name for one in selections_of(SAMPLE / "wikiqa", "test", NUMBERS)] == ["wikiqa"]
    with pytest.raises(SystemExit, match="has no WikiQA"):
        selections_of(tmp_path, "test", NUMBERS)


def test_only_questions_with_a_right_answer_and_of_a_class_with_prototypes_are_asked(tmp_path: Path):
    (tmp_path / "WikiQA-train.tsv").write_text(f"{HEAD}1\twho sings\tAnn sings\t1\n2\twhen\tno\t0\n")
    asked = ["3\twho rows\tBo rows\t1", "4\twho reads\tnobody\t0", "5\twhen is it\tnow\t1", "6\thow is it\tso\t1"]
    (tmp_path / "WikiQA-test.tsv").write_text(HEAD + "\n".join(asked))
    selection = Selection.load(tmp_path, "test", NUMBERS)
    assert [one.text for one in selection.asked] == ["who rows"]
    assert selection.numbers == (1,), "the class has no more"


def test_averaged_words_rank_by_cosine_and_by_analogy(tmp_path: Path):
    # The answer lies from its question in the direction of the prototype; the other candidate is as near.
    words = {
        "who": (1, 0, 0),
        "sings": (1, 0, 0),
        "Ann": (0, 1, 0),
        "rows": (1, 0, 0),
        "Bo": (0, 1, 0),
        "oar": (0, 0, 1),
    }
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in words.items()))
    (tmp_path / "WikiQA-train.tsv").write_text(f"{HEAD}1\twho sings\tAnn\t1\n")
    (tmp_path / "WikiQA-test.tsv").write_text(f"{HEAD}2\twho rows\toar\t0\n2\twho rows\tBo\t1\n")
    selection, encode = Selection.load(tmp_path, "test", NUMBERS), averages(WordVectors.read(path))
    assert selection.by_cosine(encode).map == 0.5
    assert selection.by_analogy(encode, 1, 0).map == 1.0
    assert np.linalg.norm(encode(["Ann and Bo"], [])[0]["Ann and Bo"]) == pytest.approx(1)
    assert not encode(["unknown"], [])[0]["unknown"].any()


def test_word_vectors_of_the_training_texts_make_one_base_model(tmp_path: Path):
    questions = [one for selection in selections_of(SAMPLE, "test", NUMBERS) for one in selection.training]
    texts = [text for one in questions for text in (one.text, *one.answers)]
    vectors = WordVectors.read(latent(texts, tmp_path / "latent.vec"))
    assert vectors.lowercase
    assert {"village", "who"} <= {*vectors.words}
    base = recurrent(vectors, tmp_path)
    (base / "kept").touch()
    assert recurrent(vectors, tmp_path) == base
    assert (base / "kept").exists()
    other = WordVectors(vectors.words, vectors.vectors + 1)
    assert recurrent(other, tmp_path) != base
