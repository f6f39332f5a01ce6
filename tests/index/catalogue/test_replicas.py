"""Several index processes over one store: what one of them acknowledged holds in all, or the answer names who lags."""

import asyncio
import shutil

import numpy as np
import pytest
import structlog

from aeenc import errors
from aeenc.v1 import index_pb2
from services.index.catalogue.replicas import FORGET, Followed, Replicas
from services.store.artifacts import ArtifactStore
from support.waiting import until
from support.worlds.index_world import SPACE, facts, served

OVER = ("files", "milvus")
NEVER = 1000.0


async def test_what_one_replica_has_built_and_activated_the_other_serves_when_the_answer_comes(serve):
    async with serve(instance="one", look_s=0.05) as one, serve(instance="two", look_s=0.05) as two:
        first = (await one.client.build("science", facts()[:6])).id
        assert await served(two) == first
        second = (await one.client.build("science", facts(), activate=False)).id
        assert await served(two, generation=second) == second
        done = await two.client.activate("science", second, expected=first)
        assert (await served(one), await served(two)) == (second, second)
        assert [(each.instance, each.generation, each.behind) for each in done.replicas] == [
            ("two", second, False),
            ("one", second, False),
        ]
        [corpus] = [found async for found in one.client.list_corpora()]
        assert {(each.instance, each.space_id) for each in corpus.replicas} == {("one", SPACE), ("two", SPACE)}


async def test_a_damaged_generation_that_one_replica_builds_again_is_opened_again_by_the_other(serve):
    async with serve(look_s=0.05) as one, serve(look_s=0.05) as two:
        first = (await one.client.build("science", facts())).id
        assert await served(two) == first
        before = two.catalogue.open.active["science"]
        path = one.store.root / "generations/science" / first / "premises.jsonl"
        path.write_bytes(path.read_bytes()[:-1] + b"X")
        assert (await one.client.build("science", facts())).id == first
        await until(lambda: two.catalogue.open.active["science"] is not before)
        assert len(await two.client.get_premises("science", ["f1", "f9"])) == 2


async def test_of_replicas_that_race_with_the_same_expectation_one_wins(serve):
    async with serve(look_s=0.05) as one, serve(look_s=0.05) as two:
        ids = [(await one.client.build("science", facts()[:count])).id for count in (6, 8, 10)]
        for _ in range(10):
            now = await served(one)
            wanted = [each for each in ids if each != now]
            outcomes = await asyncio.gather(
                *(
                    index.client.activate("science", each, expected=now)
                    for index, each in zip((one, two), wanted, strict=True)
                ),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Aborted", "Activation"]


async def test_what_one_replica_deletes_no_other_answers_from_and_its_files_go_when_nobody_reads_them(
    serve, monkeypatch
):
    monkeypatch.setattr("services.index.catalogue.following.SWEEP_S", 0.0)
    async with serve(look_s=0.05) as one, serve(look_s=0.05) as two:
        first, _ = [(await one.client.build("science", facts()[:count])).id for count in (6, 8)]
        reading = await two.catalogue.resolve("science", first)
        await one.client.delete("science", first)
        with pytest.raises(errors.NotFound):
            await served(two, generation=first)
        kept = list((one.store.root / "generations/science").glob(".deleted-*/vectors.npy"))
        assert len(kept) == 1, "somebody still reads it"
        assert np.isfinite(reading.index.vectors[:]).all()
        del reading
        await until(lambda: not list((one.store.root / "generations/science").glob(".deleted-*")))


async def test_a_corpus_whose_last_generation_one_replica_deletes_is_unknown_to_the_other(serve):
    async with serve(look_s=0.05) as one, serve(look_s=0.05) as two:
        only = (await one.client.build("science", facts(), activate=False)).id
        assert await served(two, generation=only) == only
        request = index_pb2.DeleteGenerationRequest(corpus="science", generation=only)
        done = await one.client._admin_channel.unary(one.client._admin.DeleteGeneration, request)
        assert [each.behind for each in done.replicas] == [False, False]
        with pytest.raises(errors.NotFound, match="known: none yet"):
            await anext(two.client.list_generations("science"))


async def test_explanations_that_another_replica_was_given_survive_an_activation_before_the_next_look(serve):
    async with serve(replica_wait_s=0.1) as one, serve(look_s=NEVER) as two:
        await one.client.build("science", facts()[:8])
        second = (await one.client.build("science", facts(), activate=False)).id
        await one.client.put_explanations("science", [("a pole melts", ["f5"])])
        assert (await two.client.retrieve("science", ["the pole"], prior=1.0))[0][0].id == "f5"
        await one.client.put_explanations("science", [("a pole melts", ["f6"])], replace=True)
        await two.client.activate("science", second)
        assert (await two.client.retrieve("science", ["the pole"], prior=1.0))[0][0].id == "f6"


async def test_a_replica_whose_store_is_away_serves_what_it_has_and_follows_again_when_it_is_back(serve, tmp_path):
    async with serve(look_s=0.05) as one:
        first = (await one.client.build("science", facts())).id
        away = tmp_path / "away"
        shutil.move(one.store.root, away)
        await until(lambda: "cannot be" in one.server.readiness.reason)
        assert await served(one) == first
        shutil.rmtree(one.store.root, ignore_errors=True)
        shutil.move(away, one.store.root)
        await until(lambda: not one.server.readiness.reason)
        assert await served(one) == first


def test_a_replica_whose_process_has_died_is_forgotten_at_once(artifact_store):
    one, two = (Replicas(artifact_store, name, lease_s=10.0, wait_s=0.0) for name in ("one", "two"))
    two.look()
    one.look()
    assert len(one.alive) == 2
    two._lock.close()  # as the kernel does
    one.look()
    assert len(one.alive) == 1
    assert len(list((artifact_store.root / "replicas").iterdir())) == 2, "its own record and lock"
    one.sign_off()
    assert not list((artifact_store.root / "replicas").iterdir())


async def test_calls_and_the_follower_may_look_at_the_same_time(artifact_store):
    replicas = Replicas(artifact_store, "one", lease_s=10.0, wait_s=0.0)
    await asyncio.gather(*(asyncio.to_thread(replicas.look) for _ in range(200)))
    assert len(replicas.alive) == 1
    replicas.sign_off()


def test_the_others_are_alive_while_their_records_are_being_read(artifact_store, monkeypatch):
    one, two = (Replicas(artifact_store, name, lease_s=10.0, wait_s=0.0) for name in ("one", "two"))
    two.look()
    one.look()
    alive: list[int] = []
    read = artifact_store.documents.read

    def slowly(key: str) -> bytes | None:
        alive.append(len(one.alive))  # as a call may ask while the follower looks
        return read(key)

    monkeypatch.setattr(artifact_store.documents, "read", slowly)
    one.look()
    assert alive == [2]
    one.sign_off()
    two.sign_off()


class Clock:
    """The clock of the replicas; tests move it."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("services.index.catalogue.replicas.time.monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def pair(artifact_store, clock):
    """Two replicas with a lease of 10 s, of which the first has seen the second serve g1."""
    one, two = (Replicas(artifact_store, name, lease_s=10.0, wait_s=0.0) for name in ("one", "two"))
    two.serve({"science": Followed(3, "g1", SPACE)})
    two.look()
    one.look()
    return one, two


def test_a_replica_is_alive_as_long_as_its_beat_changes_by_whatever_clock(pair, clock):
    one, two = pair
    assert [(each.instance, each.behind) for each in one.states("science")] == [("one", True), ("two", False)]
    clock.now += 9.0
    two.look()
    one.look()
    clock.now += 9.0
    one.look()
    assert len(one.alive) == 2
    clock.now += 2.0
    one.look()
    assert len(one.alive) == 1, "silent for 11 s"
    two.look()
    one.look()
    assert len(one.alive) == 2
    two.sign_off()
    one.look()
    assert len(one.alive) == 1
    one.sign_off()


def test_a_replica_whose_record_cannot_be_read_for_a_moment_is_alive_as_long_as_one_that_is_silent(
    artifact_store, pair, clock
):
    one, two = pair
    [record] = (artifact_store.root / "replicas").glob(f"{two._name}*.json")
    record.write_bytes(b"")  # as a reader finds it whose file system truncates and then writes
    clock.now += 9.0
    one.look()
    assert [(each.instance, each.generation) for each in one.states("science")] == [("one", ""), ("two", "g1")]
    clock.now += 2.0
    one.look()
    assert [each.instance for each in one.alive] == ["one"], "an unreadable record does not extend the lease"
    clock.now += 10.0 * FORGET
    one.look()
    assert not record.exists()
    one.sign_off()
    two.sign_off()


def test_a_record_that_this_release_does_not_read_is_logged_once(artifact_store: ArtifactStore):
    replicas = Replicas(artifact_store, "one", lease_s=10, wait_s=0)
    (artifact_store.root / "replicas").mkdir(parents=True)
    (artifact_store.root / "replicas" / "newer.json").write_text('{"format_version": 99}')
    with structlog.testing.capture_logs() as logged:
        replicas.look()
        replicas.look()
    replicas.sign_off()
    assert [line["log_level"] for line in logged] == ["warning"]
    assert "99" in logged[0]["reason"]
    assert [one.instance for one in replicas.alive] == ["one"]


def test_a_replica_makes_no_store_where_a_lost_volume_was(artifact_store):
    artifact_store.make_folder("generations/science")
    one, lost = Replicas(artifact_store, "one", lease_s=10.0, wait_s=0.0), artifact_store.root.with_name("lost")
    artifact_store.root.rename(lost)
    with pytest.raises(OSError, match="mount it again"):
        one.look()
    assert not artifact_store.root.exists()
    lost.rename(artifact_store.root)
    one.look()
    one.sign_off()
