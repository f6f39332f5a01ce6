"""A request id makes a retry safe: the same answer again, also after a restart, and no other request under it."""

import asyncio
import json
import os

import pytest

from aeenc import errors
from aeenc.v1 import index_pb2
from services.corpus.active import read_active
from services.corpus.generation import folder_of
from services.index.building.journal import BUILDS
from services.index.catalogue import catalogue
from services.store.artifacts import ArtifactStore
from support.worlds.index_world import PREMISES, broken_build, facts, raises, two_generations, works


async def activate(index, generation, *, request_id="a", **more):
    request = index_pb2.ActivateGenerationRequest(
        corpus="science", generation=generation, request_id=request_id, **more
    )
    return await index.client._admin_channel.unary(index.client._admin.ActivateGeneration, request)


async def delete(index, generation, *, request_id="d"):
    request = index_pb2.DeleteGenerationRequest(corpus="science", generation=generation, request_id=request_id)
    return await index.client._admin_channel.unary(index.client._admin.DeleteGeneration, request)


async def test_an_activation_sent_again_after_a_restart_gets_the_same_answer_and_moves_nothing(serve):
    async with serve() as index:
        first, second = await two_generations(index)
        await activate(index, second, expected_generation=first)
    async with serve() as index:
        await activate(index, first, request_id="back")
        again = await activate(index, second, expected_generation=first)
        assert (again.active.id, again.previous_generation) == (second, first)
        assert [one.behind for one in again.replicas] == [False]
        assert read_active(index.store, "science") == first, "a retry moves nothing"
        await raises(errors.AlreadyExists, activate(index, first), "'a'", f"generation '{second}', now with '{first}'")
        call = activate(index, second, expected_generation=second)
        await raises(errors.AlreadyExists, call, "expected_generation")
        for _ in range(2):
            none = await activate(index, "", request_id="none")
            assert (none.active.id, none.previous_generation) == ("", first)


@pytest.mark.parametrize("call", ["an activation", "a deletion"])
async def test_a_call_sent_to_two_replicas_at_once_has_one_answer(serve, call: str):
    async with serve(look_s=0.05) as one, serve(look_s=0.05) as two:
        first, second = await two_generations(one)
        both = (one, two)
        if call == "an activation":
            answers = await asyncio.gather(*(activate(each, second, expected_generation=first) for each in both))
            assert [(each.active.id, each.previous_generation) for each in answers] == [(second, first)] * 2
        else:
            answers = await asyncio.gather(*(delete(each, second) for each in both))
            assert all(each.replicas for each in answers)


@pytest.mark.parametrize(("owner", "name"), [(catalogue, "write_active"), (ArtifactStore, "delete")])
async def test_the_retry_of_a_call_that_was_killed_behind_its_change_gets_its_answer(serve, monkeypatch, owner, name):
    async with serve(retry=False) as index:
        first, second = await two_generations(index)
        call = activate(index, second, expected_generation=first) if owner is catalogue else delete(index, second)
        with monkeypatch.context() as patched:

            def killed(*args):
                sound(*args)
                raise OSError("and then the power went")

            sound = getattr(owner, name)
            patched.setattr(owner, name, killed)
            await raises(errors.AeencError, call)
    async with serve() as index:
        if owner is ArtifactStore:  # before its record, too
            assert (await delete(index, second)).replicas
            return
        await activate(index, first, request_id="back")
        answer = await activate(index, second, expected_generation=first)
        assert (answer.active.id, answer.previous_generation) == (second, first)
        assert read_active(index.store, "science") == first, "a retry moves nothing"


async def test_a_deletion_sent_again_after_a_restart_deletes_nothing_else_and_one_of_nothing_is_refused_again(serve):
    async with serve() as index:
        _, second = await two_generations(index)
        assert (await delete(index, second)).replicas
        for _ in range(2):
            nothing = "g0123456789abcdef"
            await raises(errors.NotFound, delete(index, nothing, request_id="n"), nothing)
    async with serve() as index:
        again = await index.client.build("science", facts(), activate=False)
        assert again.id == second, "ids come from the content"
        assert (await delete(index, second)).replicas
        assert len([one async for one in index.client.list_generations("science")]) == 2, "what was built since stays"


async def test_a_finished_build_is_returned_after_a_restart_and_not_for_another_one(serve):
    asked = {"premises": facts(), "request_id": "r"}
    async with serve() as index:
        built = await index.client.build("science", **asked)
    async with serve() as index:
        assert (await index.client.build("science", **asked)).id == built.id
        for changes, word in (
            ({"premises": facts()[:6]}, "premises 10, now with 6"),
            ({"premises": facts()[::-1]}, "premises_crc32"),
            ({"fold_similar": True}, "folding"),
            ({"delete_ids": ["f1"], "base_generation": "g0"}, "base_generation"),
        ):
            await raises(errors.AlreadyExists, index.client.build("science", **{**asked, **changes}), "'r'", word)


async def test_records_of_finished_builds_are_removed_by_age(serve):
    async with serve() as index:
        await two_generations(index)
        await index.client.build("science", facts(), request_id="r")
        records = list((index.store.root / "generations/science").glob(f"{BUILDS}/*"))
        assert len(records) == 3
        for path in records[:2]:
            os.utime(path, (0, 0))
    async with serve():
        assert [path.exists() for path in records] == [False] * 2 + [True]


@pytest.mark.parametrize("of", ["a finished build", "an unfinished build"])
async def test_a_build_that_a_newer_release_has_noted_is_refused_by_name_and_stays(serve, of: str):
    async with serve(build_sync_s=0.01, build_batch=8) as index:
        if of == "a finished build":
            await index.client.build("science", PREMISES, request_id="r")
            [path] = (index.store.root / folder_of("science")).glob(f"{BUILDS}/*/progress.json")
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


@pytest.mark.parametrize("record", [".moves", ".explanations"])
async def test_a_move_and_explanations_of_a_newer_release_are_refused_by_name_and_stay(serve, record: str):
    async with serve() as index:
        first, second = await two_generations(index)
        await activate(index, second, expected_generation=first)
        await index.client.put_explanations("science", [("a magnet attracts a nail", ["f1"])])
        path = max((index.store.root / folder_of("science") / record).iterdir())
        path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
        before = path.read_text()
        if record == ".moves":
            again = activate(index, second, expected_generation=first)
            await raises(errors.FailedPrecondition, again, "moves", "format_version 99")
    async with serve() as index:
        added = index.client.put_explanations("science", [("ice melts", ["f2"])])
        await raises(errors.FailedPrecondition, added, "format_version 99")
        assert path.read_text() == before
