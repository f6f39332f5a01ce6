"""Generations, over any back end: activated when expected, taken back, deleted unless active, listed page by page."""

import asyncio

import pytest

from aeenc import errors
from aeenc.v1 import index_pb2
from support.worlds.index_world import FACTS, facts, raises

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def two_generations(subject):
    corpus = subject.corpus()
    first = await subject.index.build(corpus, facts()[:6])
    second = await subject.index.build(corpus, facts(), activate=False)
    return corpus, first.id, second.id


async def active(subject, corpus):
    by_name = {one.corpus: one async for one in subject.index.list_corpora()}
    return by_name[corpus].active.id


async def test_activation_moves_the_corpus_forth_and_back(subject):
    corpus, first, second = await two_generations(subject)
    query = await subject.encode(["ice melts"])
    done = await subject.index.activate(corpus, second, expected=first)
    assert (done.active.id, done.previous_generation, done.active.active) == (second, first, True)
    assert (await subject.index.search(corpus, query, space_id=subject.space_id)).generation == second
    await subject.index.activate(corpus, first)
    assert await active(subject, corpus) == first
    assert (await subject.index.search(corpus, query, space_id=subject.space_id)).generation == first


async def test_an_unexpected_active_generation_aborts(subject):
    corpus, first, second = await two_generations(subject)
    await raises(errors.Aborted, subject.index.activate(corpus, second, expected=second), first, second)
    await raises(errors.Aborted, subject.index.activate(corpus, second, expected=""), first)
    assert await active(subject, corpus) == first
    await raises(errors.NotFound, subject.index.activate(corpus, "g0"), "g0")
    await raises(errors.NotFound, subject.index.activate("nonsense", second), "nonsense")
    only = subject.corpus()
    built = await subject.index.build(only, facts(), activate=False)
    assert (await subject.index.activate(only, built.id, expected="")).previous_generation == ""


async def test_of_two_activations_that_expect_the_same_one_wins(subject):
    corpus, first, second = await two_generations(subject)
    third = (await subject.index.build(corpus, facts()[:3], activate=False)).id
    calls = (subject.index.activate(corpus, one, expected=first) for one in (second, third))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["Aborted", "Activation"]
    won = (second, third)[[isinstance(one, Exception) for one in outcomes].index(False)]
    assert await active(subject, corpus) == won


async def test_searches_go_on_through_activations_and_each_answer_is_of_one_generation(subject):
    corpus, first, second = await two_generations(subject)
    query = await subject.encode(["ice melts"])
    sizes, stop = {first: 6, second: 10}, False

    async def search() -> set[str]:
        seen = set()
        while not stop:
            found = await subject.index.search(corpus, query, space_id=subject.space_id, k=50)
            assert len(found.ids[0]) == sizes[found.generation]
            seen.add(found.generation)
        return seen

    tasks = [asyncio.ensure_future(search()) for _ in range(4)]
    for _ in range(5):
        await subject.index.activate(corpus, second, expected=first)
        await asyncio.sleep(0.02)
        await subject.index.activate(corpus, first, expected=second)
        await asyncio.sleep(0.02)
    stop = True
    assert set.union(*await asyncio.gather(*tasks)) == {first, second}


async def test_generations_are_listed_newest_first_page_by_page_and_deleted_unless_active(subject):
    corpus, first, second = await two_generations(subject)
    assert [(one.id, one.active) async for one in subject.index.list_generations(corpus)] == [
        (second, False),
        (first, True),
    ]
    page = await subject.unary("ListGenerations", index_pb2.ListGenerationsRequest(corpus=corpus, page_size=1))
    rest = await subject.unary(
        "ListGenerations", index_pb2.ListGenerationsRequest(corpus=corpus, page_token=page.next_page_token)
    )
    assert ([one.id for one in page.generations], [one.id for one in rest.generations]) == ([second], [first])
    await raises(errors.FailedPrecondition, subject.index.delete(corpus, first), first)
    await subject.index.delete(corpus, second)
    assert [one.id async for one in subject.index.list_generations(corpus)] == [first]
    await raises(errors.NotFound, subject.index.delete(corpus, second), second)
    await raises(errors.NotFound, subject.index.activate(corpus, second), second)
    query = await subject.encode(["ice"])
    await raises(
        errors.NotFound, subject.index.search(corpus, query, space_id=subject.space_id, generation=second), second
    )
    await raises(errors.NotFound, anext(subject.index.list_generations("nonsense")), "nonsense")


async def test_a_held_generation_is_not_deleted_until_its_holders_release_it_or_are_named(subject):
    corpus, _, second = await two_generations(subject)
    for holder in ("run-b", "run-a", "run-a"):
        await subject.index.hold(corpus, second, holder)
    listed = {one.id: list(one.held_by) async for one in subject.index.list_generations(corpus)}
    assert listed[second] == ["run-a", "run-b"]
    await raises(errors.FailedPrecondition, subject.index.delete(corpus, second), second, "run-a, run-b")
    for _ in range(2):
        await subject.index.release(corpus, second, "run-a")
    await raises(errors.FailedPrecondition, subject.index.delete(corpus, second), "held by run-b;")
    await subject.index.delete(corpus, second, despite=["run-b"])
    await raises(errors.NotFound, subject.index.hold(corpus, second, "run-a"), second)
    await raises(errors.NotFound, subject.index.hold("other", second, "run-a"), "other")
    for wrong in ("", "a/b", "a" * 65):
        await raises(errors.InvalidArgument, subject.index.hold(corpus, second, wrong), "holder", f"'{wrong}'", "64")


async def test_a_listing_stays_in_its_generation_across_an_activation(subject):
    corpus, first, second = await two_generations(subject)
    page = await subject.unary("ListPremises", index_pb2.ListPremisesRequest(corpus=corpus, page_size=4))
    assert (page.generation, page.total_size, len(page.premises)) == (first, 6, 4)
    await subject.index.activate(corpus, second)
    rest = await subject.unary(
        "ListPremises", index_pb2.ListPremisesRequest(corpus=corpus, page_token=page.next_page_token)
    )
    assert (rest.generation, [one.text for one in rest.premises]) == (first, FACTS[4:6])
    assert rest.next_page_token == ""
    foreign = index_pb2.ListPremisesRequest(corpus=corpus, page_token=page.next_page_token, generation=second)
    await raises(errors.InvalidArgument, subject.unary("ListPremises", foreign), "page_token")
    nonsense = index_pb2.ListPremisesRequest(corpus=corpus, page_token="nonsense")
    await raises(errors.InvalidArgument, subject.unary("ListPremises", nonsense), "page_token")


async def test_corpora_are_listed_page_by_page(subject):
    corpora = sorted(subject.corpus() for _ in range(3))
    for corpus in corpora[:2]:
        await subject.index.build(corpus, facts())
    await subject.index.build(corpora[2], facts(), activate=False)
    for page_size in (1, 2, 1000):
        listed = [one async for one in subject.index.list_corpora(page_size=page_size)]
        assert listed == [one async for one in subject.index.list_corpora()]
        assert [one.corpus for one in listed if one.corpus in corpora] == corpora
        assert [bool(one.active.id) for one in listed if one.corpus in corpora] == [True, True, False]
    nonsense = index_pb2.ListCorporaRequest(page_token="nonsense")
    await raises(errors.InvalidArgument, subject.unary("ListCorpora", nonsense), "page_token")


async def test_premises_are_looked_up_in_the_order_asked(subject):
    corpus, first, second = await two_generations(subject)
    asked = ["f5", "f0", "f5"]
    assert [one.id for one in await subject.index.get_premises(corpus, asked)] == asked
    await raises(errors.NotFound, subject.index.get_premises(corpus, ["f9"]), "f9", first)
    assert [one.text for one in await subject.index.get_premises(corpus, ["f9"], generation=second)] == [FACTS[9]]


async def test_a_request_id_makes_activations_and_deletions_safe_to_repeat(subject):
    corpus, first, second = await two_generations(subject)
    activation = index_pb2.ActivateGenerationRequest(
        corpus=corpus, generation=second, expected_generation=first, request_id="a"
    )
    done = await subject.unary("ActivateGeneration", activation)
    again = await subject.unary("ActivateGeneration", activation)
    assert (again.active.id, again.previous_generation) == (second, first)
    assert again == done
    activation.generation = first
    await raises(errors.AlreadyExists, subject.unary("ActivateGeneration", activation), first, second)
    deletion = index_pb2.DeleteGenerationRequest(corpus=corpus, generation=first, request_id="d")
    assert await subject.unary("DeleteGeneration", deletion) == await subject.unary("DeleteGeneration", deletion)
    deletion.generation = second
    await raises(errors.AlreadyExists, subject.unary("DeleteGeneration", deletion), first, second)


async def test_a_corpus_without_an_active_generation_can_be_deleted_as_a_whole(subject):
    corpus, first, second = await two_generations(subject)
    query = await subject.encode(["ice melts"])
    await raises(errors.Aborted, subject.index.activate(corpus, "", expected=second), first)
    done = await subject.index.activate(corpus, "", expected=first)
    assert (done.active.id, done.previous_generation) == ("", first)
    await raises(
        errors.NotFound, subject.index.search(corpus, query, space_id=subject.space_id), "no active generation"
    )
    await raises(errors.NotFound, subject.index.retrieve(corpus, [FACTS[0]]), "no active generation")
    await subject.index.activate(corpus, second, expected="")
    assert (await subject.index.search(corpus, query, space_id=subject.space_id)).generation == second
    await subject.index.delete_corpus(corpus)
    assert corpus not in {one.corpus async for one in subject.index.list_corpora()}
    await raises(errors.NotFound, subject.index.delete_corpus(corpus), corpus)
    await raises(errors.NotFound, subject.index.activate("nonsense", ""), "nonsense")
    assert (await subject.index.build(corpus, facts()[:6])).id == first
