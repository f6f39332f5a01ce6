"""Builds, over any back end: acknowledged by level, folded, whole or not at all, and repeatable."""

import asyncio

import pytest

from aeenc import errors
from aeenc.v1 import index_pb2
from support.subject import chunk, header
from support.waiting import until
from support.worlds.index_world import FACTS, facts, premise, raises

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECEIVED, DURABLE, SEARCHABLE = (
    index_pb2.ACK_LEVEL_RECEIVED,
    index_pb2.ACK_LEVEL_DURABLE,
    index_pb2.ACK_LEVEL_SEARCHABLE,
)


async def listed(subject, corpus):
    return [
        (one.id, one.text, list(one.aliases), list(one.splits)) async for one in subject.index.list_premises(corpus)
    ]


async def test_acknowledgements_name_their_level_and_only_the_last_names_the_generation(subject):
    corpus = subject.corpus()
    answers = await subject.reports(header(corpus, activate=True), chunk(*facts()[:9]), chunk(*facts()[9:]))
    assert [answer.HasField("generation") for answer in answers] == [False] * (len(answers) - 1) + [True]
    levels = [answer.ack_level for answer in answers]
    assert levels == sorted(levels)
    assert levels[0] == RECEIVED
    assert levels[-2:] == [DURABLE, SEARCHABLE]
    assert (answers[-1].received, answers[-1].encoded, answers[-1].generation.active) == (10, 10, True)
    generation = answers[-1].generation
    assert (generation.corpus, generation.premises, generation.active) == (corpus, 10, True)
    assert generation.manifest_sha256
    assert generation.size_bytes > 0
    assert generation.created_at.seconds > 0
    idle = await subject.reports(header(corpus, activate=False), chunk(*facts()[:3]))
    assert (idle[-1].ack_level, idle[-1].generation.active) == (DURABLE, False)


async def test_progress_grows_with_what_is_encoded(subject):
    seen: list[tuple[int, int, str]] = []
    premises = [premise(f"p{n}", f"fact {n}") for n in range(1100)]
    await subject.index.build(subject.corpus(), premises, on_progress=lambda *one: seen.append(one))
    assert [one[:2] for one in seen] == sorted(one[:2] for one in seen)
    assert any(0 < encoded < 1100 for _, encoded, _ in seen)
    assert (seen[0][2], seen[-1]) == ("receiving", (1100, 1100, "indexing"))


async def test_equal_texts_become_one_premise_however_late_they_come(subject):
    corpus = subject.corpus()
    many = [premise(f"p{n}", f"fact {n}") for n in range(300)]
    generation = await subject.reports(
        header(corpus, activate=True),
        chunk(premise("a", "ice is cold", ["dev"]), premise("b", "fire is hot", [], ["b2"]), *many),
        chunk(*(premise(f"q{n}", f"other fact {n}") for n in range(300))),
        chunk(premise("c", "ice is cold", ["train", "facts"], ["c2"]), premise("d", "fire is hot")),
    )
    assert generation[-1].generation.premises == 602
    assert (await listed(subject, corpus))[:3] == [
        ("a", "ice is cold", ["c", "c2"], ["dev", "facts", "train"]),
        ("b", "fire is hot", ["b2", "d"], []),
        ("p0", "fact 0", [], []),
    ]
    [found] = await subject.index.get_premises(corpus, ["c2"])
    assert found.id == "a"
    [[hit]] = await subject.index.retrieve(corpus, ["ice is cold"], k=1, splits=["train"], drop_self=False)
    assert hit.id == "a", "a split that came late counts"


async def test_a_delta_keeps_the_order_and_leaves_out_what_was_deleted(subject):
    corpus = subject.corpus()
    base = await subject.index.build(corpus, [*facts(), premise("copy", FACTS[1])])
    added = [premise("n1", "snow is cold"), premise("n2", FACTS[0]), premise("n3", FACTS[4])]
    changed = await subject.index.build(corpus, added, base_generation=base.id, delete_ids=["f1", "f2", "f4"])
    kept = [(f"f{n}", FACTS[n], [], []) for n in (3, 5, 6, 7, 8, 9)]
    assert await listed(subject, corpus) == [
        ("f0", FACTS[0], ["n2"], []),
        ("copy", FACTS[1], [], []),
        *kept,
        ("n1", "snow is cold", [], []),
        ("n3", FACTS[4], [], []),
    ]
    assert changed.space_id == base.space_id
    names = [one[0] for one in await listed(subject, corpus)]
    matrix = await subject.encode([one[1] for one in await listed(subject, corpus)])
    for query in matrix:
        found = await subject.index.search(corpus, query[None, :], space_id=subject.space_id, k=3)
        subject.is_ranking(found.ids[0], found.scores[0], names, matrix, query, 3)
    gone = subject.index.build(corpus, [], base_generation=changed.id, delete_ids=["f2"])
    await raises(errors.InvalidArgument, gone, "header.delete_ids", "f2")
    taken = subject.index.build(corpus, [premise("f3", "new")], base_generation=changed.id)
    await raises(errors.InvalidArgument, taken, "f3")
    unknown = subject.index.build(corpus, facts(), base_generation="g0")
    await raises(errors.NotFound, unknown, "g0")


async def test_a_retry_with_the_same_request_id_gets_the_finished_generation_and_another_build_does_not(subject):
    corpus = subject.corpus()
    first = await subject.index.build(corpus, facts(), request_id="r/1")
    other = await subject.index.build(corpus, facts()[:4], request_id="r/2")
    await raises(errors.AlreadyExists, subject.index.build(corpus, facts()[:3], request_id="r/2"), "'r/2'", "premises")
    again = await subject.index.build(corpus, facts(), request_id="r/1")
    assert first.id == again.id
    assert first.id != other.id
    active = [one.id async for one in subject.index.list_generations(corpus) if one.active]
    assert active == [other.id], "a late retry must not take the corpus back to an older generation"
    both = await asyncio.gather(
        *(subject.index.build(corpus, facts()[:6], request_id="r/3", activate=False) for _ in range(2))
    )
    assert both[0].id == both[1].id


async def test_the_same_premises_give_the_same_generation(subject):
    corpus = subject.corpus()
    first = await subject.index.build(corpus, facts())
    assert (await subject.index.build(corpus, facts())).id == first.id
    assert len([one async for one in subject.index.list_generations(corpus)]) == 1


async def test_bad_builds_are_refused_by_name_and_leave_nothing_behind(subject):
    corpus = subject.corpus()

    def build(*premises, corpus=corpus, **more):
        return subject.index.build(corpus, premises, **more)

    good = premise("a", "ice is cold")
    await raises(errors.InvalidArgument, build(), "premises")
    await raises(errors.InvalidArgument, build(good, premise("a", "fire")), "premises[1].id", "'a'")
    await raises(errors.InvalidArgument, build(good, premise("b", "fire", aliases=["a"])), "premises[1].aliases")
    await raises(errors.InvalidArgument, build(premise("b", "fire", aliases=["b"])), "premises[0].aliases")
    for wrong in ("", "x" * 257):
        await raises(errors.InvalidArgument, build(premise(wrong, "fire")), "premises[0].id")
    await raises(errors.InvalidArgument, build(premise("a", " ")), "premises[0].text")
    await raises(errors.InvalidArgument, build(premise("a", "x", [""])), "premises[0].splits")
    most = (await subject.index.info()).service.limits.text_bytes
    await raises(errors.TooLarge, build(premise("a", "é" * (most // 2 + 1))), "premises[0].text", f"{most:,}")
    for wrong in ("", "../x", ".hidden", "a/b", "a" * 65, "ä"):
        await raises(errors.InvalidArgument, build(good, corpus=wrong), "header.corpus")
    await raises(errors.InvalidArgument, subject.reports(chunk(good)), "header")
    await raises(errors.InvalidArgument, subject.reports(), "header")
    await raises(errors.InvalidArgument, subject.reports(header(corpus), header(corpus)), "header")
    await raises(errors.InvalidArgument, build(good, delete_ids=["a"]), "base_generation")
    await raises(errors.NotFound, build(good, base_generation="g1"), corpus)
    await raises(errors.NotFound, anext(subject.index.list_generations(corpus)), corpus)
    assert corpus not in [one.corpus async for one in subject.index.list_corpora()]


async def test_builds_of_several_corpora_at_once_do_not_mix(subject):
    corpora = [subject.corpus() for _ in range(4)]
    premises = {corpus: [premise(f"{n}", f"{corpus} fact {n}") for n in range(30)] for corpus in corpora}
    built = await asyncio.gather(*(subject.index.build(corpus, premises[corpus]) for corpus in corpora))
    assert len({one.id for one in built}) == 4
    for corpus in corpora:
        assert [text for _, text, _, _ in await listed(subject, corpus)] == [one.text for one in premises[corpus]]


async def test_a_build_that_is_given_up_is_never_seen(subject):
    corpus = subject.corpus()
    seen: list[tuple[int, int]] = []
    premises = [premise(f"p{n}", f"fact {n}") for n in range(1500)]
    call = asyncio.ensure_future(subject.index.build(corpus, premises, on_progress=lambda *one: seen.append(one[:2])))
    await until(lambda: call.done() or any(encoded for _, encoded in seen), timeout_s=20)
    assert not call.done(), call.exception()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await raises(errors.NotFound, anext(subject.index.list_generations(corpus)), corpus)
    await subject.index.build(corpus, facts())
    assert len([one async for one in subject.index.list_generations(corpus)]) == 1


async def test_a_build_is_of_the_space_that_it_asks_for_or_is_refused(subject):
    corpus = subject.corpus()
    base = await subject.index.build(corpus, facts())
    more = [premise("new", "a fact that is new")]
    same = await subject.index.build(corpus, more, base_generation=base.id, space_id=base.space_id, activate=False)
    assert (same.space_id, same.premises) == (base.space_id, base.premises + 1)
    whole = await subject.index.build(corpus, facts(), space_id=base.space_id, activate=False)
    assert whole.space_id == base.space_id
    for options in ({"base_generation": base.id}, {}):
        build = subject.index.build(corpus, more, space_id="s-of-nobody", **options)
        await raises(errors.SpaceMismatch, build, "s-of-nobody")
    assert {one.id async for one in subject.index.list_generations(corpus)} == {base.id, same.id, whole.id}
