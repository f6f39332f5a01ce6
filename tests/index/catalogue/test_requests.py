"""A request id makes a retry safe: the same answer again, also after a restart, and no other request under it."""

import json
import os

import pytest

from aeenc import errors
from aeenc.v1 import index_pb2
from services.corpus.active import read_active
from services.corpus.generation import folder_of
from services.index.catalogue.requests import RequestNote, RequestNotes
from support.worlds.index_world import PREMISES, broken_build, facts, raises, works

OVER = ("files", "milvus")


async def activate(index, generation, *, request_id="a", **more):
    request = index_pb2.ActivateGenerationRequest(
        corpus="science", generation=generation, request_id=request_id, **more
    )
    return await index.client._admin_channel.unary(index.client._admin.ActivateGeneration, request)


async def delete(index, generation, *, request_id="d"):
    request = index_pb2.DeleteGenerationRequest(corpus="science", generation=generation, request_id=request_id)
    return await index.client._admin_channel.unary(index.client._admin.DeleteGeneration, request)


async def two_generations(index):
    first = await index.client.build("science", facts()[:6])
    second = await index.client.build("science", facts(), activate=False)
    return first.id, second.id


async def test_an_activation_sent_again_gets_the_same_answer_and_moves_nothing(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        done = await activate(index, second, expected_generation=first)
        again = await activate(index, second, expected_generation=first)
        assert (again.active.id, again.previous_generation) == (second, first)
        assert (again.active, [one.behind for one in again.replicas]) == (done.active, [False])
    async with serve() as index:
        await activate(index, first, request_id="back")
        again = await activate(index, second, expected_generation=first)
        assert (again.active.id, again.previous_generation) == (second, first)
        assert read_active(index.store, "science") == first, "a retry moves nothing"
        await raises(errors.AlreadyExists, activate(index, first), "'a'", "generation was", first, second)
        call = activate(index, second, expected_generation=second)
        await raises(errors.AlreadyExists, call, "expected_generation was")


async def test_an_activation_that_a_kill_cut_off_is_finished_by_its_retry(index):
    first, second = await two_generations(index)
    note = RequestNote({"generation": second, "expected_generation": first}, previous=first)
    RequestNotes(index.store).put("science", "activate", "a", note)  # and then the power went
    assert (await activate(index, second, expected_generation=first)).previous_generation == first
    assert read_active(index.store, "science") == second
    RequestNotes(index.store).put("science", "activate", "b", note)  # the pointer moved, and then it went
    answer = await activate(index, second, request_id="b", expected_generation=first)
    assert (answer.active.id, answer.previous_generation) == (second, first)


async def test_a_deletion_sent_again_gets_the_same_answer_and_deletes_nothing_else(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        assert (await delete(index, second)).generation == second
        assert (await delete(index, second)).generation == second
        await raises(errors.AlreadyExists, delete(index, first), "'d'", first, second)
    async with serve() as index:
        again = await index.client.build("science", facts(), activate=False)
        assert again.id == second, "ids come from the content"
        assert (await delete(index, second)).generation == second
        assert len([one async for one in index.client.list_generations("science")]) == 2, "what was built since stays"


async def test_a_deletion_of_nothing_is_refused_as_often_as_it_is_sent(index):
    await two_generations(index)
    for _ in range(2):
        await raises(errors.NotFound, delete(index, "g0123456789abcdef"), "g0123456789abcdef")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"premises": facts()[:6]}, "premises was 10"),
        ({"premises": facts()[::-1]}, "premises_crc32"),
        ({"fold_similar": True}, "sameness"),
        ({"delete_ids": ["f1"], "base_generation": "g0"}, "base_generation"),
    ],
)
async def test_a_finished_build_is_not_returned_for_another_one(serve, changes, word):
    asked = {"premises": facts(), "request_id": "r"}
    async with serve() as index:
        built = await index.client.build("science", **asked)
    async with serve() as index:
        assert (await index.client.build("science", **asked)).id == built.id
        await raises(errors.AlreadyExists, index.client.build("science", **{**asked, **changes}), "'r'", word)


async def test_notes_of_requests_are_removed_by_age(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        await activate(index, second)
        await delete(index, first)
        await index.client.build("science", facts(), request_id="r")
        notes = list((index.store.root / "generations/science/.requests").glob("*.json"))
        assert len(notes) == 5, "three builds, an activation and a deletion"
        for path in notes[:4]:
            os.utime(path, (0, 0))
    async with serve():
        assert [path.exists() for path in notes] == [False] * 4 + [True]


@pytest.mark.parametrize("of", ["a finished build", "an unfinished build"])
async def test_a_build_that_a_newer_release_has_noted_is_refused_by_name_and_stays(serve, of: str):
    async with serve(build_sync_s=0.01, build_batch=8) as index:
        if of == "a finished build":
            await index.client.build("science", PREMISES, request_id="r")
            [path] = (index.store.root / folder_of("science")).glob(".requests/*.json")
        else:
            await broken_build(index)
            path = works(index.store)[0] / "progress.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    before = path.read_text()
    async with serve() as index:
        again = index.client.build("science", PREMISES, request_id="r", resume_s=0.1)
        await raises(errors.FailedPrecondition, again, path.name, "format_version 99")
        assert path.read_text() == before
        assert (await index.client.build("science", PREMISES, request_id="s")).premises == len(PREMISES)


async def test_a_note_and_explanations_of_a_newer_release_are_refused_by_name_and_stay(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        await activate(index, second, expected_generation=first)
        await index.client.put_explanations("science", [("a magnet attracts a nail", ["f1"])])
        folder = index.store.root / folder_of("science")
        [note], explanations = (folder / ".requests").glob("activate-*.json"), folder / ".explanations.json"
        for path in (note, explanations):
            path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    async with serve() as index:
        again = activate(index, second, expected_generation=first)
        await raises(errors.FailedPrecondition, again, note.name, "format_version 99")
        added = index.client.put_explanations("science", [("ice melts", ["f2"])])
        await raises(errors.FailedPrecondition, added, ".explanations.json", "format_version 99")
        assert {json.loads(path.read_text())["format_version"] for path in (note, explanations)} == {99}
        assert (await index.client.get_premises("science", [facts()[0].id]))[0].id == facts()[0].id
