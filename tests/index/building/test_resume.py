"""A build with a request id goes on where it ended, and is refused when it is no longer the same build."""

import asyncio
import os
import time
from pathlib import Path

import grpc
import pytest

from aeenc import errors
from aeenc.v1 import index_pb2, index_pb2_grpc, types_pb2
from services.corpus.generation import PremiseRecord
from services.index.building import journal
from services.index.values import BuildSpec
from services.store.objects import Bucket, CachedStore
from support.subject import chunk, header, reports
from support.waiting import until
from support.worlds.index_world import PREMISES, VERSION, broken_build, files_of, premise, raises, works

SYNC = {"build_sync_s": 0.01, "build_encode_timeout_s": 10.0}


def work_of(store) -> Path:
    (directory,) = works(store)
    return directory


def build(index, premises=PREMISES, **fields):
    return index.client.build("science", premises, request_id="r", **fields)


def away(*_):
    raise errors.Unavailable("the bucket is away")


async def listed(index):
    return [(one.id, one.text) async for one in index.client.list_premises("science")]


async def goes_on(index, encoder, kept: int):
    """Builds all premises, of which the first `kept` are encoded already."""
    encoder.servicer.encoded_premises.clear()
    generation = await build(index)
    assert (generation.premises, await listed(index)) == (60, [(one.id, one.text) for one in PREMISES])
    assert not set(encoder.servicer.encoded_premises) & {one.text for one in PREMISES[:kept]}
    return generation


@pytest.mark.parametrize("raising", ["premises", "on_progress"])
async def test_what_the_callers_code_raises_is_not_taken_for_the_indexs_refusal(index, raising: str):
    raised: list[errors.Overloaded] = []

    def refuse(*_):
        raised.append(errors.Overloaded("the caller's database is full"))
        raise raised[0]

    class Premises:
        def __iter__(self):
            yield from PREMISES
            if raising == "premises":
                refuse()

    options = {} if raising == "premises" else {raising: refuse}
    await raises(errors.Overloaded, build(index, Premises(), resume_s=1.0, **options), "the caller's")
    assert len(raised) == 1


async def test_a_build_goes_on_at_another_host_that_shares_a_bucket_alone(serve, encoder, tmp_path: Path):
    bucket = tmp_path / "bucket"
    one, two = ({**SYNC, "artifacts_url": f"file://{bucket}", "artifacts_dir": tmp_path / name} for name in "ab")
    async with serve(**one) as index:
        report = await broken_build(index)
    encoder.servicer.encoded_premises.clear()
    async with serve(**two) as index:
        await broken_build(index)  # on which the host dies, too, and the first one comes back
    assert not set(encoder.servicer.encoded_premises) & {one.text for one in PREMISES[: report.encoded]}
    async with serve(**one) as index:
        await goes_on(index, encoder, report.encoded)
    assert [path.name for path in bucket.glob("generations/science/.builds/*/*")] == ["progress.json"], "that is all"


async def test_a_build_whose_upload_failed_is_uploaded_by_its_retry_and_not_encoded_again(
    serve, encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bucket = tmp_path / "bucket"
    encoder.servicer.pause_s = 2 * SYNC["build_sync_s"]  # what takes less is kept nowhere
    async with serve(**SYNC, artifacts_url=f"file://{bucket}") as index:
        monkeypatch.setattr(CachedStore, "push", away)
        await raises(errors.Unavailable, build(index, resume_s=0), "away")
        monkeypatch.undo()
        encoder.servicer.encoded_premises.clear()
        monkeypatch.setattr(Bucket, "upload", away)
        await raises(errors.Unavailable, build(index, resume_s=0, activate=False), "away")  # it is durable here alone
        monkeypatch.undo()
        generation = await build(index, resume_s=0)
        assert (bucket / "generations/science" / generation.id / "manifest.json").exists()
        assert await listed(index) == [(one.id, one.text) for one in PREMISES]
        assert not encoder.servicer.encoded_premises
        assert index.store.list("generations/science") == [generation.id]
        assert not works(index.store)
    assert [path.name for path in bucket.glob("generations/science/.builds/*/*")] == ["progress.json"], "that is all"


async def test_a_build_whose_upload_failed_leaves_nothing_here_when_no_retry_can_go_on(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with serve() as index:  # the directory is the store
        own = (await build(index, PREMISES[:30])).id
    monkeypatch.setattr(CachedStore, "push", away)
    async with serve(artifacts_url=f"file://{tmp_path / 'bucket'}", build_sync_s=3600) as index:
        await raises(errors.Unavailable, build(index, resume_s=0), "away")
        await raises(errors.Unavailable, build(index, PREMISES[:30], resume_s=0), "away")
        assert not works(index.store)
        assert index.store.list("generations/science") == [own], "what was there before may be the only one"


async def test_a_retry_builds_a_deleted_generation_again_and_activates_it(serve, tmp_path: Path):
    one, two = ({**SYNC, "artifacts_url": f"file://{tmp_path}/bucket", "artifacts_dir": tmp_path / n} for n in "ab")
    async with serve(**one) as index, serve(**two) as other:
        built = (await build(index)).id
        await other.client.build("science", PREMISES[:30])
        await other.client.delete("science", built)
        await broken_build(index)  # the host has a copy of what is deleted, and now a journal
        assert (await build(index)).id == built
        assert (await index.client.retrieve("science", ["fact 1"], k=1)).generation == built


def test_the_copy_of_a_journal_is_removed_by_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = CachedStore(tmp_path / "one", Bucket(f"file://{tmp_path / 'bucket'}"))
    kept = journal.Journal(store, "science", "r", {})
    kept.open(0)
    for number in range(50):
        kept.append([PremiseRecord(f"p{number}", "a fact")])
        kept.sync(None, "", "")
    asked, ask = [], Bucket._asked
    monkeypatch.setattr(Bucket, "_asked", lambda self, key, call: (asked.append(key), ask(self, key, call))[1])
    kept.close(keep=False)
    assert len(asked) <= 3
    assert [Path(name).name for name in store.bucket.sizes("generations/science")] == ["progress.json"]


async def test_a_copy_of_a_journal_in_which_two_hosts_have_written_counts_as_absent(serve, encoder, tmp_path: Path):
    bucket = tmp_path / "bucket"
    one, two = ({**SYNC, "artifacts_url": f"file://{bucket}", "artifacts_dir": tmp_path / name} for name in "ab")
    async with serve(**one) as index:
        await broken_build(index)
    part = max(bucket.glob("generations/science/.builds/*/parts/vectors*"), key=lambda path: path.name)
    part.write_bytes(b"x" * part.stat().st_size)
    async with serve(**two) as index:
        await goes_on(index, encoder, 0)


async def test_what_a_caller_who_goes_away_has_sent_never_passes_for_the_whole_corpus(serve):
    # grpc.aio ends the stream of a caller who has gone as if he had sent everything, until something is sent to him
    async with serve(**SYNC) as index:
        (builder,) = (one._builder for _, one in index.server._servicers if hasattr(one, "_builder"))
        records = [PremiseRecord(one.id, one.text) for one in PREMISES[:16]]
        all_written, ended = asyncio.Event(), False

        async def chunks():
            nonlocal ended
            yield records
            await all_written.wait()
            ended = True

        steps = builder.build(BuildSpec("science", "r", activate=True), chunks())
        async for progress in steps:
            if progress.encoded == 16:
                all_written.set()
            if ended:  # what is told now does not arrive
                break
        assert not progress.generation
        await steps.aclose()
        assert not index.store.list("generations/science")
        assert (await build(index)).premises == 60


async def test_other_premises_under_the_same_request_id_are_refused_and_nothing_is_lost(serve, encoder):
    async with serve(**SYNC) as index:
        report = await broken_build(index)
        changed = [*PREMISES[:7], premise("p7", "something else"), *PREMISES[8:]]
        await raises(errors.AlreadyExists, build(index, changed), "premises[7]", "p7", "'r'")
        await raises(errors.AlreadyExists, build(index, PREMISES[:30]), "ended after 30")
        other = index.client.build("science", PREMISES, request_id="other")
        base = (await other).id
        await raises(errors.AlreadyExists, build(index, base_generation=base), "another build")
        await goes_on(index, encoder, report.encoded)


async def test_skipping_what_is_kept_is_taken_and_what_is_not_is_refused(serve):
    async with serve(**SYNC) as index:

        def resumed(resume_from, request_id="r"):
            return reports(index.client, header("science", request_id=request_id, resume_from=resume_from))

        await raises(errors.FailedPrecondition, resumed(3), "resume_from is 3", "0 premises")
        await raises(errors.InvalidArgument, resumed(3, ""), "request_id")
        assert files_of(index.store) == {}
        await broken_build(index, PREMISES[:40])
        await raises(errors.FailedPrecondition, resumed(41), "resume_from is 41", "40 premises")
        told = await reports(index.client, header("science", request_id="r", resume_from=40), chunk(*PREMISES[40:]))
        assert (told[0].received, told[0].durable) == (40, 40), "the first report says what is there"
        assert (told[-1].received, told[-1].durable, told[-1].generation.premises) == (60, 60, 60)


@pytest.mark.parametrize("name", ["premises.jsonl", "generation/vectors.npy"])
async def test_what_lies_beyond_the_last_sync_is_cut_off(serve, encoder, name):
    async with serve(**SYNC) as index:
        await broken_build(index, PREMISES[:40])
    with (work_of(index.store) / name).open("ab") as file:  # once the build that was broken off writes no more
        file.write(b'{"id": "torn')
    async with serve(**SYNC) as index:
        report = await broken_build(index, durable=60, rows=50)  # goes on behind what was cut off, and is broken again
    async with serve(**SYNC) as index:
        generation = await goes_on(index, encoder, report.encoded)
        index.store.open("generations/science", generation.id, verify="full")


@pytest.mark.parametrize("name", ["premises.jsonl", "progress.json", "generation/vectors.npy"])
async def test_damaged_work_is_done_again_and_not_taken_over(serve, encoder, name):
    async with serve(**SYNC) as index:
        await broken_build(index)
    path = work_of(index.store) / name  # once the build that was broken off writes no more
    data = bytearray(path.read_bytes())
    place = data.index(VERSION.encode()) if name == "progress.json" else len(data) // 2
    data[place] ^= 0x10
    path.write_bytes(data)
    async with serve(**SYNC) as index:
        generation = await goes_on(index, encoder, 0)
        assert set(encoder.servicer.encoded_premises) == {one.text for one in PREMISES}
        index.store.open("generations/science", generation.id, verify="full")


async def test_an_encoder_that_changes_costs_the_vectors_and_not_the_premises(serve, encoder):
    async with serve(**SYNC) as index:
        await broken_build(index)
        encoder.servicer.version = "qother"
        await raises(errors.FailedPrecondition, build(index), "qother")
        encoder.servicer.encoded_premises.clear()
        generation = await build(index)
        assert generation.premise_version == "qother"
        assert set(encoder.servicer.encoded_premises) == {one.text for one in PREMISES}


async def test_a_build_goes_on_behind_a_premise_that_the_index_has_refused(serve, encoder):
    async with serve(**SYNC) as index:
        report = await broken_build(index, PREMISES[:40])
        await raises(errors.InvalidArgument, build(index, [*PREMISES[:40], premise("p0", "twice")]), "premises[40].id")
        await goes_on(index, encoder, report.encoded)


async def test_a_build_goes_on_behind_a_malformed_message(serve, encoder):
    async with serve(**SYNC) as index:
        header = index_pb2.BuildHeader(corpus="science", request_id="r")
        first = {"premises": [{"id": one.id, "text": one.text} for one in PREMISES[:40]]}
        acknowledged = asyncio.Event()

        async def twice():
            yield index_pb2.BuildGenerationRequest(header=header, **first)
            await acknowledged.wait()
            yield index_pb2.BuildGenerationRequest(header=header)

        async def send():
            stub = index_pb2_grpc.IndexAdminServiceStub(index.client.channel.grpc)
            async for report in stub.BuildGeneration(twice()):
                if (report.encoded, report.ack_level) == (40, index_pb2.ACK_LEVEL_DURABLE):
                    acknowledged.set()

        with pytest.raises(grpc.RpcError) as refused:
            await send()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        await goes_on(index, encoder, 40)


@pytest.mark.parametrize("place", [20, 39, 59])
async def test_a_build_goes_on_before_a_premise_that_the_encoder_has_refused(serve, encoder, place: int):
    long = [*PREMISES]
    long[place] = premise(f"p{place}", "far too long")
    encoder.servicer.most_chars = 10
    async with serve(**SYNC) as index:
        await raises(errors.InvalidArgument, build(index, long), f"'p{place}'")
        await goes_on(index, encoder, place // 8 * 8)  # batches have eight


async def test_a_premise_too_long_is_cut_where_asked_also_in_a_retry_and_the_generation_says_so(serve, encoder):
    long = [*PREMISES]
    long[3], long[50] = (premise(f"p{place}", f"far too long {place}") for place in (3, 50))
    encoder.servicer.most_chars = 12
    async with serve(**SYNC) as index:
        await raises(errors.InvalidArgument, build(index, long), "'p3'", "300 tokens", "truncate")
        await broken_build(index, long[:40], truncate=types_pb2.TRUNCATE_END)
        encoder.servicer.encoded_premises.clear()
        built = await build(index, long, truncate=True)
        assert "far too long 3" not in encoder.servicer.encoded_premises
        assert built.notes[0].startswith("2 of 60 premises are too long for the model")
        [found] = await index.client.retrieve("science", ["far too long"], k=2, drop_self=False)
        assert {one.text for one in found} == {"far too long 3", "far too long 50"}
        more = await index.client.add("science", [("n", "far too long again")], truncate=True)
        assert (more.premises, len(more.notes)) == (61, 1)
        await raises(errors.InvalidArgument, index.client.add("science", [("m", "far too long, too")]), "'m'")


async def test_a_delta_goes_on_too_and_encodes_no_text_of_its_base(serve, encoder):
    async with serve(**SYNC) as index:
        base = (await index.client.build("science", PREMISES[:30])).id
        more = [premise("again", "fact 3"), *(premise(f"n{n}", f"new fact {n}") for n in range(40))]
        encoder.servicer.encoded_premises.clear()
        await broken_build(index, more, base_generation=base, delete_ids=["p3", "p4"])
        await build(index, more, base_generation=base, delete_ids=["p4", "p3"])
        kept = [(one.id, one.text) for one in PREMISES[:30] if one.id not in {"p3", "p4"}]
        assert await listed(index) == kept + [(one.id, one.text) for one in more]
        assert not {one.text for one in PREMISES[:30]} & set(encoder.servicer.encoded_premises)


async def test_abandoned_builds_are_swept_after_a_time_and_those_under_way_never(serve, encoder):
    async with serve(**SYNC, build_keep_s=3600) as index:
        await broken_build(index, request_id="left")
        await until(lambda: encoder.servicer.open_streams == 0)
        left = work_of(index.store)
        encoder.servicer.pause_s = 0.1
        running = asyncio.ensure_future(build(index))
        await until(lambda: len(works(index.store)) == 2)
        for directory in works(index.store):
            os.utime(directory, (time.time() - 7200,) * 2)
        journal.sweep_journals(index.store, ["science"], 3600, 3600)
        assert not left.exists()
        assert len(works(index.store)) == 1
        encoder.servicer.pause_s = 0.0
        assert (await running).premises == 60


async def test_two_indexes_never_build_one_request_at_the_same_time(serve, encoder):
    encoder.servicer.may_answer.clear()
    async with serve(**SYNC) as index, serve(**SYNC) as other:
        running = asyncio.ensure_future(build(index))
        await until(lambda: encoder.servicer.in_flight > 0)
        await raises(errors.Unavailable, build(other, resume_s=0), "another index", "'r'")
        encoder.servicer.may_answer.set()
        assert (await running).premises == 60
        assert (await build(other)).id == (await running).id


UNREADABLE = (grpc.StatusCode.UNAVAILABLE, "no checkpoint can be read: q1 has format_version 99; update this service")


async def test_a_build_without_an_encoder_that_serves_ends_with_its_reason_well_before_the_callers_time(serve, encoder):
    encoder.servicer.fail = UNREADABLE
    async with serve(build_encode_timeout_s=60.0) as index:
        reason = ("has format_version 99; update this service", "try again later")
        await raises(errors.Unavailable, build(index, timeout_s=4), *reason)


async def test_the_time_that_a_build_has_waited_for_an_encoder_counts_as_time_without_progress(
    serve, encoder, monkeypatch: pytest.MonkeyPatch
):
    begun, begin = [], journal.Journal.open
    monkeypatch.setattr(journal.Journal, "open", lambda self, resume_from: (begun.append(1), begin(self, resume_from)))
    encoder.servicer.fail = UNREADABLE
    async with serve(build_encode_timeout_s=0.6) as index:
        await raises(errors.Unavailable, build(index, resume_s=0.5), "has format_version 99")
    assert len(begun) == 1, "it waited for the encoder again"
