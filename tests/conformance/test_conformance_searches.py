"""Search and Retrieve, over any back end: exact, in the canonical order, restricted as asked, refused with a reason."""

import asyncio

import numpy as np
import pytest

from aeenc import errors
from aeenc.v1 import index_pb2, types_pb2
from services.corpus.arrays import exact_scores
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.ranking.fusion import Prior, fuse, with_bonus
from services.index.values import Explanation, SearchHits
from support.subject import TOLERANCE
from support.worlds.index_world import FACTS, facts, premise, raises

pytestmark = pytest.mark.asyncio(loop_scope="module")

ODD_IDS = [
    'say "ice"',
    "it's",
    "back\\slash",
    '\\" or true or \\"',
    "\\u0022",
    "new\nline",
    "tab\t%_",
    "Ünïcödé ☃ 雪",
    "a" * 256,
    '"]) or (ordinal >= 0',
]


async def science(subject):
    corpus = subject.corpus()
    generation = await subject.index.build(corpus, facts())
    return corpus, generation, await subject.encode(FACTS)


async def test_answers_equal_a_brute_force_whatever_is_asked_beside_them(subject):
    texts = [f"fact {n % 40} about {n % 7} of {n}" for n in range(300)]
    names = [f"p{n}" for n in range(300)]
    corpus = subject.corpus()
    await subject.index.build(corpus, [premise(*pair) for pair in zip(names, texts, strict=True)])
    matrix = await subject.encode(texts)

    async def one(rows: list[int], k: int) -> None:
        found = await subject.index.search(corpus, matrix[rows], space_id=subject.space_id, k=k)
        assert found.exact
        for row, ids, scores in zip(rows, found.ids, found.scores, strict=True):
            subject.is_ranking(ids, scores, names, matrix, matrix[row], k)

    rng = np.random.default_rng(3)
    await asyncio.gather(
        *(
            one(rng.integers(0, 300, int(rng.choice([1, 1, 5, 70]))).tolist(), int(rng.choice([1, 3, 50])))
            for _ in range(12)
        )
    )


async def test_equal_scores_come_in_the_order_of_insertion_and_a_k_beyond_the_corpus_gives_all_of_it(subject):
    corpus = subject.corpus()
    texts = [f"ice is cold{'!' * n}" for n in range(120)] + [f"Ice is {'very ' * n}cold" for n in range(20)]
    rng = np.random.default_rng(5)
    names = [f"p{n}" for n in rng.permutation(len(texts))]
    await subject.index.build(corpus, [premise(*pair) for pair in zip(names, texts, strict=True)])
    matrix = await subject.encode(texts)
    for k in (1, 3, 60, 140, 500):
        found = await subject.index.search(corpus, matrix[:1], space_id=subject.space_id, k=k)
        subject.is_ranking(found.ids[0], found.scores[0], names, matrix, matrix[0], k)
    if subject.is_hashed:
        assert len(set(found.scores[0][:121].tolist())) == 1, "the texts were to have one vector"


async def test_splits_and_excluded_ids_restrict_what_is_returned(subject):
    corpus = subject.corpus()
    odd = 'a "quoted" \\ split'
    texts = [("t", ["train"]), ("d", ["dev"]), ("fd", ["facts", "dev"]), ("none", []), ("odd", [odd])]
    await subject.index.build(
        corpus, [premise(name, f"light {name}", splits, [f"{name}-alias"]) for name, splits in texts]
    )
    query = await subject.encode(["light"])

    async def found(**more):
        answer = await subject.index.search(corpus, query, space_id=subject.space_id, **more)
        return set(answer.ids[0])

    assert await found() == {"t", "d", "fd", "none", "odd"}
    assert await found(splits=["facts", "train"]) == {"t", "fd", "none"}
    assert await found(splits=["facts", "train"], exclude=["t", "none-alias", "unknown"]) == {"fd"}
    assert await found(splits=["test"], exclude=["t"]) == {"none"}
    assert await found(splits=[odd]) == {"odd", "none"}
    assert await found(splits=['x"]) or (ordinal >= 0']) == {"none"}
    assert await found(exclude=["t", "d", "fd", "none", "odd"]) == set()


FILTERS = [
    ({"only_ids": ["p3", "p5-alias", "p3"]}, lambda n, tags: n in {3, 5}),
    ({"before_id": "p4"}, lambda n, tags: n < 4),
    ({"before_id": "p0"}, lambda n, tags: False),
    ({"tags": ["even"]}, lambda n, tags: "even" in tags),
    ({"tags": ["even,-third"]}, lambda n, tags: "even" in tags and "third" not in tags),
    ({"tags": ["-even"]}, lambda n, tags: "even" not in tags),
    ({"tags": ["even,third", "-even,-third"]}, lambda n, tags: ("even" in tags) == ("third" in tags)),
    ({"tags": ['x"] or (ordinal >= 0']}, lambda n, tags: False),
    (
        {"tags": ["even"], "before_id": "p9", "only_ids": [f"p{n}" for n in range(3, 20)]},
        lambda n, tags: n in {4, 6, 8},
    ),
    ({"tags": ["even"], "splits": ["train"], "exclude": ["p2"]}, lambda n, tags: n % 2 == 0 and n % 5 and n != 2),
]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid", "iterative_lexical", "search"])
async def test_a_filter_by_ids_order_and_tags_leaves_what_a_scan_would_leave(subject, mode):
    corpus, count = subject.corpus(), 20
    tags = [[name for name, step in (("even", 2), ("third", 3)) if n % step == 0] for n in range(count)]
    told = [
        premise(f"p{n}", f"light number{n}", ["dev"] if n % 5 == 0 else ["train"], [f"p{n}-alias"], tags[n])
        for n in range(count)
    ]
    await subject.index.build(corpus, told)
    assert [list(one.tags) async for one in subject.index.list_premises(corpus)] == tags
    for options, passes in FILTERS:
        if mode == "search":
            vector = await subject.encode(["light"])
            found = await subject.index.search(corpus, vector, space_id=subject.space_id, k=count, **options)
            ids = found.ids[0]
        else:
            [hits] = await subject.index.retrieve(corpus, ["light"], k=count, mode=mode, drop_self=False, **options)
            ids = [hit.id for hit in hits]
        assert sorted(ids) == sorted(f"p{n}" for n in range(count) if passes(n, tags[n])), options


async def test_an_id_of_a_filter_that_the_generation_lacks_is_named_and_so_is_a_wrong_clause(subject):
    corpus, _, _ = await science(subject)
    for options in ({"only_ids": ["f1", "nobody"]}, {"before_id": "nobody"}):
        await raises(errors.NotFound, subject.index.retrieve(corpus, ["ice"], **options), "nobody")
    await raises(errors.NotFound, subject.index.retrieve(corpus, ["ice"], only_ids=["f1", ""]), "no premise")
    for clause in ("", "physics,", "-", "a,,b"):
        await raises(errors.InvalidArgument, subject.index.retrieve(corpus, ["ice"], tags=[clause]), "tags[0]")
    await raises(errors.TooLarge, subject.index.retrieve(corpus, ["ice"], only_ids=["f1"] * 1025), "only_ids")
    for tag in ("-draft", "a,b", " a", "", "x" * 65):
        build = subject.index.build(subject.corpus(), [premise("a", "ice", tags=[tag])])
        await raises(errors.InvalidArgument, build, "premises[0].tags", "a tag has 1 to 64 bytes")


async def test_ids_of_any_characters_are_found_listed_and_excluded(subject):
    corpus = subject.corpus()
    await subject.index.build(corpus, [premise(one, f"fact {n}") for n, one in enumerate(ODD_IDS)])
    query = await subject.encode(["fact"])
    assert [one.id async for one in subject.index.list_premises(corpus)] == ODD_IDS
    for n, one in enumerate(ODD_IDS):
        assert [found.text for found in await subject.index.get_premises(corpus, [one])] == [f"fact {n}"]
        left = await subject.index.search(corpus, query, space_id=subject.space_id, k=50, exclude=[one])
        assert set(left.ids[0]) == {*ODD_IDS} - {one}
    none = await subject.index.search(corpus, query, space_id=subject.space_id, exclude=ODD_IDS)
    assert none.ids == [[]]
    await raises(errors.NotFound, subject.index.get_premises(corpus, ['x"']), 'x"')


async def test_a_long_list_of_excluded_ids_excludes_them_all(subject):
    corpus = subject.corpus()
    await subject.index.build(corpus, [premise(f"p{n}", f"fact {n}") for n in range(1100)])
    query = await subject.encode(["fact 7"])
    most = (await subject.index.info()).service.limits.items
    excluded = [f"p{n}" for n in range(min(most, 1024))]
    found = await subject.index.search(corpus, query, space_id=subject.space_id, k=1000, exclude=excluded)
    assert set(found.ids[0]) == {f"p{n}" for n in range(len(excluded), 1100)}
    await raises(
        errors.TooLarge,
        subject.index.search(corpus, query, space_id=subject.space_id, exclude=["x"] * (most + 1)),
        "exclude_ids",
    )


async def test_a_pinned_search_stays_in_its_generation(subject):
    corpus, first, matrix = await science(subject)
    second = await subject.index.build(corpus, facts()[:4])
    now = await subject.index.search(corpus, matrix[:1], space_id=subject.space_id, k=50)
    assert (now.generation, len(now.ids[0])) == (second.id, 4)
    pinned = await subject.index.search(corpus, matrix[:1], space_id=subject.space_id, k=50, generation=first.id)
    assert (pinned.generation, len(pinned.ids[0])) == (first.id, 10)


async def test_texts_are_answered_with_premises_and_never_with_themselves(subject):
    corpus, generation, _ = await science(subject)
    dropped = await subject.index.retrieve(corpus, [FACTS[0], "a magnet attracts Iron"], k=10)
    assert FACTS[0] not in [hit.text for hit in dropped[0]]
    assert [len(hits) for hits in dropped] == [9, 10]
    assert (dropped.generation, dropped.space_id) == (generation.id, generation.space_id)
    assert dropped.model_version
    kept = await subject.index.retrieve(corpus, [FACTS[0]], k=10, drop_self=False)
    assert FACTS[0] in [hit.text for hit in kept[0]]
    queries = await subject.encode([FACTS[0]], role="query")
    found = await subject.index.search(corpus, queries, space_id=subject.space_id, k=10)
    assert [hit.id for hit in kept[0]] == found.ids[0]
    by_id = {f"f{n}": text for n, text in enumerate(FACTS)}
    assert all(by_id[hit.id] == hit.text for hits in dropped for hit in hits)


MODES = ["dense", "lexical", "iterative_lexical", "hybrid"]


async def ranked(subject, matrix: np.ndarray, mode: str, text: str) -> SearchHits:
    """All facts that a mode ranks for a text, as its formula says."""
    lexical = LexicalIndex.of(FACTS)
    if mode == "iterative_lexical":
        return lexical.iterate(lexical.terms(text), len(FACTS), None)
    words = lexical.scores(lexical.terms(text))
    if mode == "lexical":
        return best(words, len(FACTS), None)
    [query] = await subject.encode([text], role="query")
    cosines = exact_scores(matrix, query.astype(np.float64))
    return SearchHits.best(np.arange(len(FACTS)), cosines if mode == "dense" else fuse(cosines, words, 0.2), len(FACTS))


async def answered(subject, call):
    """What the server answers; skips the test where it says that it has no such mode or stage."""
    try:
        return await call
    except errors.Unimplemented as error:
        assert not subject.encoder, "both back ends have all modes"
        pytest.skip(error.message)


def is_list(subject, hits, expected: SearchHits, mode: str) -> None:
    """Asserts that a list is the expected one, to the precision with which vectors are known."""
    is_known = subject.is_hashed or mode.endswith("lexical")
    assert len(hits) == len(expected.ordinals) > 0
    np.testing.assert_allclose([hit.score for hit in hits], expected.scores, atol=1e-6 if is_known else TOLERANCE)
    if is_known:
        assert [hit.id for hit in hits] == [f"f{n}" for n in expected.ordinals]


@pytest.mark.parametrize("mode", MODES)
async def test_each_mode_ranks_as_its_formula_says(subject, mode):
    corpus, _, matrix = await science(subject)
    texts = ["ice cools a magnet", "iron and water"]
    answer = await answered(subject, subject.index.retrieve(corpus, texts, k=5, mode=mode))
    for text, hits in zip(texts, answer, strict=True):
        is_list(subject, hits, (await ranked(subject, matrix, mode, text)).first(5), mode)


async def test_the_prior_adds_what_explained_similar_hypotheses_to_each_mode(subject):
    corpus, _, matrix = await science(subject)
    explained = [("magnets attract iron nails", ("f0", "f1", "gone")), ("the iron pole melts", ("f1", "f6"))]
    assert await answered(subject, subject.index.put_explanations(corpus, explained)) == 2
    prior = Prior.over([Explanation(*one) for one in explained], {f"f{n}": n for n in range(len(matrix))})
    for mode in MODES:
        text, share = "a magnet and a pole of iron", 0.4
        call = subject.index.retrieve(corpus, [text], k=5, mode=mode, prior=share)
        if mode == "iterative_lexical":
            await raises(errors.InvalidArgument, call, "rounds")
            continue
        [hits] = await answered(subject, call)
        pool = await ranked(subject, matrix, mode, text)
        bonus = prior.bonus(prior.nearest(text), pool.ordinals)
        is_list(subject, hits, with_bonus(pool, bonus, share, 5), mode)
    assert await subject.index.put_explanations(corpus, [("frogs hunt", ("f8",))], replace=True) == 1


async def test_wrong_questions_get_a_status_and_a_message_that_helps_and_the_service_goes_on(subject):
    corpus, _, matrix = await science(subject)
    good = matrix[:1]
    limits = (await subject.index.info()).service.limits

    def search(vectors=good, corpus=corpus, k=3, space_id=subject.space_id, **more):
        return subject.index.search(corpus, vectors, space_id=space_id, k=k, **more)

    wrong = good.copy()
    wrong[0, 3] = np.nan
    await raises(errors.InvalidArgument, search(wrong), "vectors[0]")
    infinite = good.copy()
    infinite[0, 0] = np.inf
    await raises(errors.InvalidArgument, search(np.concatenate([good, infinite])), "vectors[1]")
    for length in ("3", "1e-30", "1e+30"):
        await raises(errors.InvalidArgument, search(good * np.float32(length)), "vectors[0]", f"length {length}")
    await raises(errors.InvalidArgument, search(good[:, :16] / np.linalg.norm(good[:, :16])), "16 dimensions")
    await raises(errors.InvalidArgument, search(good[:0]), "vectors")
    await raises(errors.TooLarge, search(np.repeat(good, limits.items + 1, axis=0)), f"{limits.items:,}")
    await raises(errors.InvalidArgument, search(k=0), "k")
    await raises(errors.InvalidArgument, search(k=limits.k + 1), "k")
    await raises(errors.NotFound, search(corpus="nonsense"), "nonsense")
    await raises(errors.NotFound, search(corpus="../science"), "unknown")
    await raises(errors.NotFound, search(generation="g0"), "g0")
    await raises(errors.InvalidArgument, search(generation="../../x"))
    await raises(errors.InvalidArgument, search(space_id=""), "space_id")
    await raises(errors.SpaceMismatch, search(space_id="sother"), "sother", subject.space_id)
    await raises(errors.InvalidArgument, subject.index.retrieve(corpus, []), "texts")
    await raises(errors.InvalidArgument, subject.index.retrieve(corpus, ["ice", " "]), "texts[1]")
    long = "é" * (limits.text_bytes // 2 + 1)
    await raises(errors.TooLarge, subject.index.retrieve(corpus, [long]), "texts[0]", f"{limits.text_bytes:,}")
    await raises(errors.InvalidArgument, subject.index.retrieve(corpus, ["ice"], k=0), "k")
    await raises(errors.NotFound, subject.index.retrieve("nonsense", ["ice"]), "nonsense")
    await raises(errors.NotFound, subject.index.get_premises(corpus, ["f1", "x1"]), "x1")
    await raises(errors.InvalidArgument, subject.index.get_premises(corpus, []), "ids")
    assert (await search()).ids[0]


@pytest.mark.parametrize(
    "field",
    [
        {"options": {"mode": index_pb2.RETRIEVE_MODE_LEXICAL}},
        {"options": {"mode": index_pb2.RETRIEVE_MODE_HYBRID}},
        {"options": {"mode": index_pb2.RETRIEVE_MODE_ITERATIVE_LEXICAL}},
        {"options": {"rerank": 5}},
        {"options": {"prior": 0.1}},
        {"options": {"negative_feedback": 0.1}},
        {"accepted": [types_pb2.PremiseSet(premise_ids=["f1"])]},
    ],
    ids=lambda field: next(iter(field.get("options", field))),
)
async def test_what_a_server_does_not_have_it_refuses_by_name_and_never_passes_over(subject, field):
    corpus, _, _ = await science(subject)
    request = index_pb2.RetrieveRequest(corpus=corpus, texts=["ice"], k=5, **field)
    [outcome] = await asyncio.gather(subject.unary("Retrieve", request), return_exceptions=True)
    if isinstance(outcome, errors.Unimplemented):
        name, value = next(iter(field.get("options", field).items()))
        assert (name if name != "mode" else index_pb2.RetrieveMode.Name(value)[14:]) in outcome.message
    elif isinstance(outcome, errors.FailedPrecondition):
        assert "prior" in field.get("options", field), "only a prior needs what has to be put first"
        assert "prior" in outcome.message
    else:
        assert len(outcome.results) == 1
