"""From Milvus's candidates to final lists: the same as a brute force in float64, however rough the first scores."""

import weakref

import numpy as np
import pytest

from support.servers.milvus_server import need_milvus

need_milvus()

from services.corpus.generation import PremiseRecord  # noqa: E402
from services.index.milvus import generation  # noqa: E402
from services.index.milvus.generation import Candidates, GenerationCollection  # noqa: E402
from services.index.milvus.schema import K_MOST, NAMES_MOST, allowed, to_record, to_row, with_any_id  # noqa: E402
from services.index.milvus.searching import rescore  # noqa: E402
from services.index.values import Scope  # noqa: E402


class Rough:
    """A Milvus that computes in float32 and breaks ties as it likes."""

    def __init__(self, matrix):
        self.matrix = matrix
        self.widths = []

    def __call__(self, queries, width):
        self.widths.append(width)
        found = []
        for query in queries:
            raw = self.matrix @ query
            order = np.argsort(-raw, kind="quicksort")[:width]
            records = [PremiseRecord(f"p{n}", f"text {n}") for n in order]
            found.append(Candidates(order.astype(np.int64), raw[order], self.matrix[order], records))
        return found


def unit(matrix):
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def crowded(rows, dim=33):
    """Many equal rows, and many that differ in the last bit only, in any order."""
    rng = np.random.default_rng(7)
    matrix = unit(rng.normal(size=(rows, dim)))
    matrix[: rows // 2] = matrix[0]
    near = np.arange(rows // 2, rows * 3 // 4)
    matrix[near] = matrix[0]
    flips = rng.integers(0, dim, size=len(near))
    matrix[near, flips] = np.nextafter(matrix[near, flips], np.float32(2))
    return matrix[rng.permutation(rows)], matrix[0]


@pytest.mark.parametrize("k", [1, 5, 300])
def test_lists_are_those_of_a_brute_force_in_float64(k):
    matrix, query = crowded(2000)
    queries = np.stack([query, unit(np.random.default_rng(1).normal(size=(1, 33)))[0]])
    rescored = rescore(queries, k, Rough(matrix), is_exact=True)
    assert rescored.exact
    for one, asked in zip(rescored.hits, queries, strict=True):
        exact = np.einsum("ij,j->i", matrix.astype(np.float64), asked.astype(np.float64)).astype(np.float32)
        order = np.lexsort((np.arange(len(matrix)), -exact))[:k]
        assert one.ordinals.tolist() == order.tolist()
        assert one.scores.tobytes() == exact[order].tobytes()
        assert {rescored.premises[n].id for n in order} == {f"p{n}" for n in order}


def test_a_large_call_holds_one_answer_of_milvus_at_a_time(monkeypatch):
    collection, answers, most = GenerationCollection(None, "aeenc_g_0", 33), [], []

    class Hit(dict):
        """One that can be counted."""

    def read(_method, *, data, **_):
        most.append(sum(answer() is not None for answer in answers))
        hits = [Hit() for _ in data]
        answers.extend(map(weakref.ref, hits))
        return hits

    monkeypatch.setattr(generation, "_ANSWER_BYTES", 1)  # one query an answer
    monkeypatch.setattr(collection, "_read", read)
    monkeypatch.setattr(collection, "_search_params", lambda *_: {})
    monkeypatch.setattr(collection, "_candidates", lambda hit: hit)
    for _ in collection.candidates(np.zeros((20, 33), np.float32), 3, ""):
        pass
    assert len(answers) == 20
    assert max(most) <= 2, "the one that is looked at, and the one before"


def test_only_queries_that_need_it_are_asked_again_and_more_than_milvus_gives_is_said_to_be_inexact():
    matrix, query = crowded(2000)
    rough = Rough(matrix)
    rescore(unit(np.random.default_rng(1).normal(size=(3, 33))), 5, rough, is_exact=True)
    assert len(rough.widths) == 1
    rescore(query[None, :], 5, rough, is_exact=True)
    assert rough.widths[1:] == [13, 52, 208, 832, 3328]
    many = Rough(np.repeat(query[None, :], K_MOST + 1, axis=0))
    rescored = rescore(query[None, :], 5, many, is_exact=True)
    assert not rescored.exact
    assert len(rescored.hits[0].ordinals) == 5
    once = Rough(matrix)
    assert not rescore(query[None, :], 5, once, is_exact=False).exact
    assert once.widths == [13]


def test_a_premise_comes_back_as_it_was_and_too_many_names_are_refused():
    record = PremiseRecord('a"b', "ice\n is \\cold", ("c", "d"), ("dev",))
    assert to_record(to_row(3, record, np.zeros(4, np.float32))) == record
    with pytest.raises(Exception, match="4,097 ids"):
        to_row(0, PremiseRecord("a", "t", tuple(f"x{n}" for n in range(NAMES_MOST))), np.zeros(4, np.float32))


def test_an_expression_never_holds_what_a_caller_wrote():
    evil = '"]) or (ordinal >= 0'
    clause = frozenset({evil}), frozenset({evil, "x"})
    scope = Scope("science", 3, exclude_ids=(evil,), splits=(evil,), clauses=frozenset({clause}))
    for expression in (with_any_id([evil]), allowed(scope, {})):
        assert "ordinal" not in expression
    assert not allowed(Scope("science", 3), {})
