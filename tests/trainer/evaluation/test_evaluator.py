"""Evaluations of what the index retrieves, through the RPCs: a trainer, an encoder and an index over the tiny space."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aeenc import Fusion, IndexClient, Retrieval, TrainerClient, errors
from aeenc.evaluation import Gain, average_precision, graded_ndcg, metrics_of, oracle_ndcg, recall_by_grade
from aeenc.trees import Accessible, Step, Tree
from aeenc.v1 import types_pb2
from support.worlds.trainer_world import FACTS, QUERIES, Space, serve_fleet

# A query is a premise, too: the first one explains the others.
PREMISES = [*FACTS, QUERIES[0]]
GOLD = [(query, (FACTS[n], FACTS[(n + 5) % 24], FACTS[24 + n])) for n, query in enumerate(QUERIES[:12])]
GOLD.append((QUERIES[0], (QUERIES[0],)))
GRADED = [*GOLD, (QUERIES[12], {FACTS[12]: 3.0, FACTS[17]: 1.0})]
TREE = Tree(
    "t",
    QUERIES[1],
    {"sent1": FACTS[1], "sent2": FACTS[30], "sent3": FACTS[2]},
    (Step(("sent1", "sent2"), "int1", QUERIES[2]), Step(("int1", "sent3"), "hypothesis", QUERIES[1])),
)


@dataclass
class World:
    trainer: TrainerClient
    index: IndexClient
    space: Space
    corpus: str

    async def evaluate(
        self, queries: Any = GOLD, *, corpus: str | None = None, **options: Any
    ) -> types_pb2.EvaluationReport:
        return await self.trainer.evaluate(self.corpus if corpus is None else corpus, queries, **options)


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    """A data set of rated pairs."""
    rows = [{"query": QUERIES[n], "premise": FACTS[m], "grade": (n + m) % 4} for n in range(3) for m in range(8)]
    path = tmp_path / "rated.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
async def world(space: Space, redis_url: str, namespace: str, tmp_path: Path, rated: Path) -> AsyncIterator[World]:
    async with serve_fleet(space, redis_url, namespace, tmp_path, data_sets={"rated": rated}) as fleet:
        premises = [types_pb2.Premise(id=f"p {n}", text=text) for n, text in enumerate(PREMISES)]
        corpus = f"r-{uuid.uuid4().hex[:8]}"  # the store is the session's
        await fleet.client.index.build(corpus, premises)
        yield World(fleet.client.trainer, fleet.client.index, space, corpus)


def ranks_in(found: list[Any], gold: tuple[str, ...]) -> np.ndarray[Any, Any]:
    at = {hit.text: rank for rank, hit in enumerate(found, start=1)}
    return np.array([at.get(text, 2**62) for text in gold])


def merged(queries: Any) -> dict[str, tuple[str, ...]]:
    gold: dict[str, dict[str, None]] = {}
    for text, premises in queries:
        gold.setdefault(text, {}).update(dict.fromkeys(premises))
    return {text: tuple(premises) for text, premises in gold.items()}


@pytest.mark.parametrize(
    "retrieval",
    [
        Retrieval(),
        Retrieval("lexical"),
        Retrieval("iterative_lexical"),
        Retrieval("hybrid", Fusion(lexical_weight=0.4)),
        Retrieval("hybrid", Fusion("reciprocal_rank", 0.4)),
        Retrieval(prior=0.5),
        Retrieval(negative_feedback=0.4),
    ],
    ids=["dense", "lexical", "iterative", "hybrid", "reciprocal", "prior", "feedback"],
)
async def test_every_mode_is_evaluated_as_it_answers(world: World, retrieval: Retrieval):
    await world.index.put_explanations(world.corpus, [(QUERIES[3], ["p 1", "p 7"]), (QUERIES[15], ["p 3"])])
    report = await world.evaluate(retrieval=retrieval, ranks=True)
    gold = merged(GOLD)
    ranks: dict[str, list[Any]] = {"strict": [], "paper": []}
    for text, premises in gold.items():
        for protocol, drop_self in (("strict", True), ("paper", False)):
            wanted = tuple(one for one in premises if not drop_self or one != text)
            found = await world.index.retrieve(
                world.corpus,
                [text],
                k=1000,
                mode=retrieval.mode,
                fusion=retrieval.fusion,
                prior=retrieval.prior,
                negative_feedback=retrieval.negative_feedback,
                drop_self=drop_self,
            )
            ranks[protocol].append(ranks_in(found[0], wanted))
    for protocol in ("strict", "paper"):
        expected, found = metrics_of(ranks[protocol]), getattr(report, protocol)
        assert (found.map, found.ndcg) == pytest.approx((expected.map, expected.ndcg))
        assert found.hit_at_10 == pytest.approx(expected.hit_at_10)
        told = [[rank or 2**62 for rank in getattr(one, protocol)] for one in report.ranks]
        assert told == [own.tolist() for own in ranks[protocol]]
    assert bool(report.model_version) == (retrieval.mode in {"dense", "hybrid"})
    assert (report.queries, report.candidates) == (12, len(PREMISES))


ACCESSIBLE = {
    QUERIES[0]: Accessible("p 40"),
    QUERIES[1]: Accessible(only_ids=("p 1", "p 6", "p 25", "p 3", "p 41")),
    QUERIES[2]: Accessible("p 47", ("p 2", "p 7", "p 26", "p 47")),
    QUERIES[3]: Accessible("p 28"),
}


@pytest.mark.parametrize("retrieval", [None, Retrieval("hybrid"), Retrieval(rerank=0, mode="lexical")])
async def test_only_what_is_accessible_to_a_query_is_ranked_for_it(world: World, retrieval: Retrieval | None):
    gold = merged(GOLD[:12])
    report = await world.evaluate(GOLD[:12], retrieval=retrieval, ranks=True, accessible=ACCESSIBLE)
    for (text, premises), told in zip(gold.items(), report.ranks, strict=True):
        may = ACCESSIBLE.get(text, Accessible())
        found = await world.index.retrieve(
            world.corpus, [text], k=1000, mode=(retrieval or Retrieval()).mode, precision="float32", **vars(may)
        )
        assert [rank or 2**62 for rank in told.strict] == ranks_in(found[0], premises).tolist()
        assert len(found[0]) < len(PREMISES) - 1 or text not in ACCESSIBLE
    without = await world.evaluate(GOLD[:12], retrieval=retrieval)
    assert report.strict.map > without.strict.map


@pytest.mark.parametrize("retrieval", [None, Retrieval("hybrid")])
async def test_gold_that_says_the_same_as_a_premise_is_that_premise_where_the_corpus_was_folded(
    world: World, retrieval: Retrieval | None
):
    again = {text: f"{text.capitalize()}!" for text in FACTS[:6]}
    premises = [types_pb2.Premise(id=f"p {n}", text=text) for n, text in enumerate([*PREMISES, *again.values()])]
    folded = f"f-{uuid.uuid4().hex[:8]}"
    assert (await world.index.build(folded, premises, fold_similar=True)).premises == len(PREMISES)
    options: dict[str, Any] = {"retrieval": retrieval, "trees": [TREE], "ranks": True}
    plain = await world.evaluate(GOLD[:8], training=GOLD[:3], **options)
    other = [(query, tuple(again.get(text, text) for text in gold)) for query, gold in GOLD[:8]]
    both = [(query, (*gold, *(again[text] for text in gold if text in again))) for query, gold in GOLD[:8]]
    leaves = {label: again.get(text, text) for label, text in TREE.sentences.items()}
    options["trees"] = [replace(TREE, sentences=leaves)]
    for gold in (other, both):
        found = await world.trainer.evaluate(folded, gold, training=gold[:3], **options)
        assert replace(found, generation=plain.generation) == plain
        job = await world.trainer.start_job(corpus=folded, data_sets=["rated"], validation=gold)
        await world.trainer.cancel(job.id)
    apart = f"a-{uuid.uuid4().hex[:8]}"
    assert (await world.index.build(apart, premises)).premises == len(premises)
    assert (await world.trainer.evaluate(apart, both, retrieval=retrieval)).pairs > plain.pairs
    with pytest.raises(errors.InvalidArgument, match="is not in the corpus"):
        await world.evaluate(other, retrieval=retrieval)


async def test_grades_add_graded_quality_and_leave_the_binary_one(world: World):
    grades = [(text, {one: float(n % 4 + (n == 0)) for n, one in enumerate(gold)}) for text, gold in GOLD[:12]]
    graded = await world.evaluate([*grades, (QUERIES[0], {QUERIES[0]: 3.0, FACTS[0]: 5.0})], ranks=True)
    positive = [(text, tuple(one for one, grade in told.items() if grade)) for text, told in grades]
    binary = await world.evaluate([*positive, GOLD[-1]])
    assert (graded.strict, binary.graded) == (binary.strict, None)
    told = [[5.0, 1.0, 2.0], *[[1.0, 1.0, 2.0]] * 11]  # the own text of the first query is not ranked
    ranks = [list(one.strict) for one in graded.ranks]
    found = graded.graded
    assert found is not None
    for gain in Gain:
        each = list(zip(ranks, told, strict=True))
        assert getattr(found, f"ndcg_{gain.value}") == pytest.approx(np.mean([graded_ndcg(*one, gain) for one in each]))
        oracle = np.mean([oracle_ndcg(*one, gain) for one in each])
        assert getattr(found, f"oracle_ndcg_{gain.value}") == pytest.approx(oracle)
    recalls = [(one.grade, one.pairs, one.recall_at_10, one.recall_at_200) for one in found.recalls]
    shares = recall_by_grade(ranks, told, (10, 200))
    pairs = {5.0: 1, 2.0: 12, 1.0: 23}
    assert recalls == [(grade, pairs[grade], *shares[grade]) for grade in (5.0, 2.0, 1.0)]
    message = types_pb2.GoldQuery(text=QUERIES[1], premises=FACTS[:2], grades=[1])
    with pytest.raises(errors.InvalidArgument, match="has 1 of 2 premises"):
        await world.evaluate([message])
    with pytest.raises(errors.InvalidArgument, match="between 0 and 100, got 101"):
        await world.evaluate([(QUERIES[1], {FACTS[1]: 101.0})])


async def test_ranks_that_may_not_fit_an_answer_are_refused_before_anything_is_ranked(world: World, monkeypatch):
    for name, size in (("RANK_BYTES", 2**17), ("ANSWER_BYTES", 2**12)):  # of 16 ranks of two protocols half are left
        monkeypatch.setattr(f"services.trainer.evaluation.evaluator.{name}", size)
    with pytest.raises(errors.TooLarge, match=r"37 premises .* at most 7; .*strict_only"):
        await world.evaluate(ranks=True)
    assert (await world.evaluate(GOLD[:5], ranks=True, strict_only=True)).ranks
    assert (await world.evaluate()).strict.map > 0


async def test_more_than_one_evaluation_ranks_is_refused_while_it_comes(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.trainer.servicer.MAX_QUERIES", 3)
    monkeypatch.setattr("services.trainer.servicer.MAX_GOLD", 14)
    large: list[tuple[dict[str, Any], str]] = [
        ({"queries": GOLD[:4]}, "4 queries, .* at most 3"),
        ({"queries": GOLD[:3], "training": GOLD[:1] * 4}, "4 training queries, .* at most 3"),
        ({"queries": GOLD[:3], "trees": [TREE, TREE]}, "4 inner nodes of trees, .* at most 3"),
        ({"queries": GOLD[:3], "training": GOLD[1:3]}, "15 gold premises of queries, .* at most 14"),
    ]
    for options, said in large:
        with pytest.raises(errors.TooLarge, match=f"^{said}"):
            await world.evaluate(**options)


async def test_dense_retrieval_and_the_encoders_cosines_agree(world: World):
    by_index, by_vectors = await world.evaluate(retrieval=Retrieval()), await world.evaluate()
    for protocol in ("strict", "paper"):
        assert getattr(by_index, protocol).map == pytest.approx(getattr(by_vectors, protocol).map, abs=1e-6)
    assert by_index.model_version == by_vectors.model_version


@pytest.mark.parametrize(
    "options",
    [{"retrieval": Retrieval("hybrid")}, {"retrieval": Retrieval("hybrid"), "conditioned": True}, {}],
    ids=["hybrid", "conditioned", "vectors"],
)
async def test_the_figures_are_the_same_in_whatever_parts_index_and_encoder_are_asked(
    world: World, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
):
    asked = {**options, "queries": GRADED, "training": GOLD[:4], "ranks": True}
    whole = await world.evaluate(**asked)
    monkeypatch.setattr("services.trainer.evaluation.evaluator.PART", 5)
    monkeypatch.setattr("services.trainer.evaluation.evaluator.CHUNK", 5)
    assert await world.evaluate(**asked) == whole


async def test_the_papers_protocol_can_be_left_out(world: World):
    for retrieval in (None, Retrieval("lexical")):
        report = await world.evaluate(retrieval=retrieval, strict_only=True, ranks=True)
        assert report.paper is None
        assert not any(one.paper for one in report.ranks)
        assert report.strict.map == pytest.approx((await world.evaluate(retrieval=retrieval)).strict.map)


async def test_a_conditioned_evaluation_tells_the_premise_found_first_and_looks_for_the_others(world: World):
    report = await world.evaluate(retrieval=Retrieval("lexical"), conditioned=True)
    told_values, plain_values = [], []
    for text, premises in merged(GOLD).items():
        gold = tuple(one for one in premises if one != text)
        plain = (await world.index.retrieve(world.corpus, [text], k=1000, mode="lexical"))[0]
        ranks = ranks_in(plain, gold)
        first = gold[int(np.argmin(ranks))]
        others = tuple(one for one in gold if one != first)
        accepted = [[f"p {PREMISES.index(first)}"]]
        told = (await world.index.retrieve(world.corpus, [text], k=1000, mode="lexical", accepted=accepted))[0]
        told_values.append(average_precision(ranks_in(told, others)))
        plain_values.append(average_precision(ranks_in([hit for hit in plain if hit.text != first], others)))
    [part] = report.parts
    assert types_pb2.EvaluationPartKind.Name(part.kind) == "EVALUATION_PART_KIND_NOT_CONDITIONED"
    assert report.strict.map == pytest.approx(np.mean(told_values))
    assert part.strict.map == pytest.approx(np.mean(plain_values))
    assert (report.queries, report.pairs, report.paper) == (12, 24, None)


async def test_training_queries_and_trees_add_their_parts_of_the_report(world: World):
    report = await world.evaluate(training=GOLD[:4], trees=[TREE], retrieval=Retrieval("lexical"))
    kinds = [
        types_pb2.EvaluationPartKind.Name(part.kind).removeprefix("EVALUATION_PART_KIND_") for part in report.parts
    ]
    assert kinds == [f"{what}_{seen}" for what in ("QUERY", "PREMISE", "PAIR") for seen in ("SEEN", "UNSEEN")]
    assert [part.pairs for part in report.parts[:2]] == [13, 24], "the first query has its own text as a fourth"
    texts, leaves = (QUERIES[1], QUERIES[2]), {FACTS[1], FACTS[30], FACTS[2]}
    found = await world.index.retrieve(world.corpus, texts, k=25, mode="lexical")
    alone = leaves & {hit.text for hit in found[0]}
    assert report.hypothesis_alone.recall_at_25 == pytest.approx(len(alone) / 3)
    best: dict[str, float] = {}
    for hit in (*found[0], *found[1]):
        best[hit.text] = max(hit.score, best.get(hit.text, 0.0))
    along = leaves & set(sorted(best, key=lambda text: (-best[text], PREMISES.index(text)))[:25])
    assert report.gold_tree.recall_at_25 == pytest.approx(len(along) / 3)
    assert (report.gold_tree.trees, report.gold_tree.leaves) == (1, 3)


async def test_wrong_evaluations_are_refused_with_a_remedy(world: World):
    tree = Tree("t", "h", {"sent1": "no such fact"}, (Step(("sent1",), "hypothesis", "h"),))
    alone = [(QUERIES[0], (FACTS[0],))]
    twice = [types_pb2.GoldQuery(text=QUERIES[1], premises=[FACTS[1]], before_id=one) for one in ("p 5", "p 6")]
    accessible: list[tuple[Accessible, type[errors.AeencError], str]] = [
        (Accessible("p 0"), errors.InvalidArgument, "gold premise .* is not accessible"),
        (Accessible(only_ids=("p 1",)), errors.InvalidArgument, "is not accessible: .* `only_ids`"),
        (Accessible(only_ids=("p 1",) * 1025), errors.TooLarge, r"queries\[1\].only_ids"),
        (Accessible("p 999"), errors.NotFound, "'p 999', by which query"),
    ]
    wrong: list[tuple[Any, dict[str, Any], type[errors.AeencError], str]] = [
        ([], {}, errors.InvalidArgument, "at least one gold query"),
        (GOLD, {"corpus": "unknown"}, errors.NotFound, "build it"),
        (GOLD, {"corpus": ""}, errors.InvalidArgument, "name a corpus"),
        (GOLD, {"version": "qnothing"}, errors.VersionNotLoaded, "qnothing"),
        (GOLD, {"generation": "gnothing"}, errors.NotFound, "gnothing"),
        ([("q", ("no such",))], {}, errors.InvalidArgument, "no such"),
        (GOLD, {"trees": [tree]}, errors.InvalidArgument, "no such fact"),
        (GOLD, {"trees": [tree], "retrieval": Retrieval(), "conditioned": True}, errors.InvalidArgument, "conditioned"),
        (alone, {"retrieval": Retrieval(), "conditioned": True}, errors.InvalidArgument, "two gold premises"),
        (alone, {"retrieval": Retrieval(prior=0.3)}, errors.FailedPrecondition, "explanations"),
        (alone, {"retrieval": Retrieval(prior=3.0)}, errors.InvalidArgument, "prior"),
        (alone, {"retrieval": Retrieval(rerank_weight=0.3)}, errors.InvalidArgument, "rerank_weight: is 0.3"),
        (alone, {"retrieval": Retrieval(rerank=20)}, errors.Unimplemented, "cross-encoder"),
        (alone, {"retrieval": Retrieval(), "version": "qnothing"}, errors.VersionNotLoaded, "qnothing"),
        ([("q", ("no such",))], {"retrieval": Retrieval("lexical")}, errors.InvalidArgument, "no such"),
        (twice, {}, errors.InvalidArgument, "is there twice with other before_id"),
        (GOLD, {"accessible": {"why": Accessible("p 47")}}, errors.InvalidArgument, "'why', which is none"),
        *((GOLD[:3], {"accessible": {QUERIES[1]: only}}, kind, remedy) for only, kind, remedy in accessible),
    ]
    for queries, options, kind, remedy in wrong:
        with pytest.raises(kind, match=remedy):
            await world.evaluate(queries, timeout_s=15, **options)
    with pytest.raises(errors.InvalidArgument, match="which go with Evaluate"):
        await world.trainer.start_job(corpus=world.corpus, data_sets=["rated"], validation=twice[:1])


async def test_training_goes_without_what_no_part_looks_up_so_that_it_may_be_larger_than_one_evaluation(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("services.trainer.servicer.MAX_QUERIES", len(GOLD))
    others = [(f"another query {number}", ["another premise"]) for number in range(len(GOLD))]
    unlike = [part.kind.name for part in (await world.evaluate(training=others)).parts]
    assert unlike == ["QUERY_UNSEEN", "PREMISE_UNSEEN", "PAIR_UNSEEN"]
    within = [(text, [*premises, "another premise"]) for text, premises in GOLD[:4]]
    same, refused = ("another query", GOLD[5][1]), ("another query", dict.fromkeys(GOLD[6][1], 0.0))
    report = await world.evaluate(training=[*others, *within, same, refused])
    assert report.parts == (await world.evaluate(training=[*GOLD[:4], same])).parts
    assert {part.kind.name.rpartition("_")[2] for part in report.parts} == {"SEEN", "UNSEEN"}
    wrong = types_pb2.GoldQuery(text="another query", premises=["another premise"], grades=[1.0, 2.0])
    with pytest.raises(errors.InvalidArgument, match="has 2 of 1 premises"):
        await world.evaluate(training=[*GOLD[:1], wrong])
