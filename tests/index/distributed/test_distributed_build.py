"""A distributed build: the generation that a stream would make, resumed task by task, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aeenc import Client
from aeenc.adapters.facts import read_facts
from aeenc.errors import Aborted, AeencError, DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from aeenc.transport.targets import Targets
from services.index.building import journal
from services.index.distributed import command, engine, stages
from services.index.distributed.engine import Built, build
from services.index.distributed.stages import Encoders, Plan
from services.index.distributed.work import Work
from services.index.values import BuildOptions, EngineOptions
from services.store.artifacts import ArtifactStore
from services.store.files import Documents

SHARD = 40
FACTS = [
    {"id": f"f{n}", "text": text, "splits": ["dev", "train", "facts"][: n % 4]}
    for n in range(300)
    for text in [("Iron is a Metal!", "iron is a metal", f"fact {n // 2} of the corpus")[min(2, n % 7)]]
]


class Here:
    """Runs tasks one after the other in this process; `ran` counts them by stage. Dies before task `until`, if set."""

    def __init__(self, until: int = 10**9) -> None:
        self.ran: list[tuple[str, int]] = []
        self._until = until

    def run(self, task: Any, plan: Plan, url: str, arguments: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, given in reversed(arguments.items()):  # no order is promised
            if len(self.ran) >= self._until:
                raise Unavailable("killed")
            self.ran.append((task.__name__, number))
            yield number, task(plan, Work(url), number, *given)


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Any]:
    """Writes facts to a file and opens it."""

    def write(facts: Any = FACTS, name: str = "facts.jsonl", **options: Any) -> Any:
        path = tmp_path / name
        path.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
        return read_facts(path, **options)

    write.again = lambda: read_facts(tmp_path / "facts.jsonl")  # type: ignore[attr-defined]
    return write


@pytest.fixture
def built(encoder: Any, artifact_store: ArtifactStore, tmp_path: Path) -> Callable[..., Any]:
    """Builds from a source in this process."""

    async def run(facts: Any, processes: Any = None, engines: EngineOptions | None = None, **changes: Any) -> Built:
        engines = engines or EngineOptions()
        small = {"text_bytes": 1000, "part_bytes": 3000, "shard_facts": SHARD, "storage": engines.storage}
        plan = replace(Plan.of("c", facts, **{**small, **changes}), partitions=5)
        encoders = Encoders(Targets(encoder=encoder.target), BuildOptions(batch=8, patience_s=1.0, engines=engines))
        given = (plan, str(tmp_path / "work"), processes or Here(), encoders)
        return await asyncio.to_thread(build, *given, artifact_store)

    return run


@pytest.fixture
def commanded(encoder: Any, artifact_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Builds by the command, beside an index, in this process."""
    monkeypatch.setenv("AEENC_INDEX_ARTIFACTS_DIR", str(artifact_store.root))

    async def run(index: Any, facts: Any, processes: Any = None, **options: Any) -> Built:
        monkeypatch.setattr(command, "connected", lambda *_: nullcontext(processes or Here()))

        def build_on_ray() -> Built:
            with Client(index=f"127.0.0.1:{index.server.port}") as client:
                return command.build_on_ray(client, Targets(encoder=encoder.target), "c", facts, **options)

        return await asyncio.to_thread(build_on_ray)

    return run


@pytest.mark.parametrize("engines", [EngineOptions(), EngineOptions("ivf", storage="float16", recall=0.5)])
async def test_the_generation_is_that_of_a_build_from_a_stream(
    serve: Any, built: Any, source: Any, engines: EngineOptions, tmp_path: Path
):
    facts = source()
    (tmp_path / "work/read").mkdir(parents=True)
    (tmp_path / "work/read/.000000.facts.left").touch()
    async with serve(engine=engines.engine, storage=engines.storage, recall=engines.recall, build_threads=1) as index:
        streamed = await index.client.build("c", facts, activate=False)
        found = await built(facts, engines=engines)
        assert found.artifact.id == streamed.id, "the id is a hash of all files"
        assert (found.facts, found.premises) == (len(FACTS), streamed.premises)
        assert streamed.premises < len(FACTS)
        await index.client.verify("c", found.artifact.id)
    assert not (tmp_path / "work").exists(), "the work is removed, and what a killed worker has left there"


async def test_premises_too_long_are_cut_where_asked_as_in_a_build_from_a_stream(
    serve: Any, commanded: Any, source: Any, encoder: Any
):
    encoder.servicer.most_chars = 20
    async with serve() as index:
        with pytest.raises(InvalidArgument, match="300 tokens"):
            await commanded(index, source())
        streamed = await index.client.build("c", source.again(), activate=False, truncate=True)
        found = await commanded(index, source.again(), truncate=True)
        assert found.artifact.id == streamed.id
        assert "too long for the model" in streamed.notes[0]


@pytest.mark.parametrize("over", ["files", "milvus"], indirect=True)
async def test_an_index_serves_what_it_did_not_build(serve: Any, built: Any, source: Any, over: Any):
    async with serve() as index:
        found = await built(source(), engines=EngineOptions(milvus="flat" if over else None))
        await index.client.verify("c", found.artifact.id)
        await index.client.activate("c", found.artifact.id, expected="")
        hits = await index.client.retrieve("c", ["which fact is 78?"], mode="lexical")
        assert hits[0][0].text == "fact 78 of the corpus"
        splits = {one.id: one.splits async for one in index.client.list_premises("c")}
        [of_split] = await index.client.retrieve("c", ["which fact is 78?"], k=300, splits=["facts"])
        assert {hit.id for hit in of_split} == {one for one, names in splits.items() if not names or "facts" in names}
        assert 0 < len(of_split) < found.premises


async def test_nothing_that_is_finished_is_done_again(built: Any, source: Any, encoder: Any):
    whole = Here()
    await built(source(), whole)
    once = len(encoder.servicer.encoded_premises)
    assert {name for name, _ in whole.ran} == {"read", "fold", "encode"}
    encoder.servicer.encoded_premises.clear()
    done: list[tuple[str, int]] = []
    for _ in range(0, len(whole.ran), 4):
        dying = Here(until=4)
        try:
            await built(source(), dying)
        except Unavailable:
            done += dying.ran
        else:
            done += dying.ran
            break
    assert sorted(done) == sorted(whole.ran), "each task once, however often it was killed"
    assert len(encoder.servicer.encoded_premises) == once


async def test_a_repeated_fact_is_left_out_and_one_with_another_text_is_refused(built: Any, source: Any):
    again = await built(source([*FACTS, *FACTS[:50]]))
    assert again.premises == (await built(source())).premises
    short = [*FACTS, {"id": "one", "text": "é"}]
    assert (await built(source([*short, short[-1]]))).premises == (await built(source(short))).premises
    wrong = [*FACTS, {"id": "f3", "text": "something else"}]
    with pytest.raises(InvalidArgument, match=r"fact 3: its id is also used at .*facts\.jsonl: fact 4, for two texts"):
        await built(source(wrong))
    with pytest.raises(InvalidArgument, match="with two sets of splits"):
        await built(source([*FACTS, {**FACTS[3], "splits": ["dev"]}]))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"id": "x"}, "`text` must be there"),
        ({"id": "x", "text": " "}, "`text` must be a string"),
        ({"id": "x" * 300, "text": "t"}, "300 bytes; give 1 to 256"),
        ({"id": "x", "text": "t" * 2000}, "2,000 bytes"),
        (7, "`text` must be a string"),
    ],
)
async def test_a_malformed_fact_is_named_by_file_and_place(built: Any, source: Any, bad: Any, says: str):
    with pytest.raises(AeencError, match=says) as refused:
        await built(source([*FACTS, bad]))
    assert "facts.jsonl: byte " in refused.value.message


async def test_a_file_without_facts_is_refused(built: Any, source: Any):
    with pytest.raises(InvalidArgument, match="holds no facts"):
        await built(source([]))


def test_another_corpus_or_a_changed_file_is_another_build(source: Any):
    before = Plan.of("c", source(), text_bytes=1000)
    assert Plan.of("c", source.again(), text_bytes=1000).digest == before.digest
    assert Plan.of("d", source.again(), text_bytes=1000).digest != before.digest
    assert Plan.of("c", source(FACTS[:-1]), text_bytes=1000).digest != before.digest


async def test_shards_of_another_version_are_encoded_again(built: Any, source: Any, encoder: Any):
    whole = Here()
    await built(source(), whole)
    with pytest.raises(Unavailable):
        await built(source(), Here(until=len(whole.ran) - 2))
    encoder.servicer.version = "q00000000000000bb"
    with pytest.raises(FailedPrecondition, match="changed to q00000000000000bb"):
        await built(source())
    found = await built(source())
    assert found.artifact.meta["premise_version"] == "q00000000000000bb"


@pytest.mark.parametrize("suffix", [stages.PREMISES, stages.VECTORS])
async def test_a_damaged_shard_is_found_and_made_again(
    built: Any, source: Any, monkeypatch: pytest.MonkeyPatch, suffix: str, tmp_path: Path
):
    finish = Work.finish

    def damaged(self: Work, stage: str, number: int, contents: Any, record: Any) -> Any:
        written = finish(self, stage, number, contents, record)
        if (stage, number) == (stages.ENCODE, 2):
            path = tmp_path / "work" / f"encode/000002.{suffix}"
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        return written

    monkeypatch.setattr(Work, "finish", damaged)
    with pytest.raises(DataLoss, match=f"encode/000002.{suffix} is damaged"):
        await built(source())
    monkeypatch.setattr(Work, "finish", finish)
    again = Here()
    await built(source(), again)
    assert again.ran == [("encode", 2)]


@pytest.mark.parametrize("path", ["read/000001.facts", "read/000001.ids", "fold/000001.premises"])
@pytest.mark.parametrize(
    "damage", [lambda content: content[:-9], lambda content: content.replace(b"1", b"7", 1)], ids=["short", "changed"]
)
async def test_damaged_work_is_found_and_made_again(built: Any, source: Any, path: str, damage: Any, tmp_path: Path):
    sound = await built(source())
    reads = len(Plan.of("c", source(), text_bytes=1000, part_bytes=3000).parts)
    with pytest.raises(Unavailable):
        await built(source(), Here(until=reads + (5 if path.startswith("fold") else 0)))
    file = tmp_path / "work" / path
    file.write_bytes(damage(file.read_bytes()))
    again = Here()
    with pytest.raises(DataLoss, match=f"{path} is damaged; build again"):
        await built(source(), again)
    assert (await built(source(), again)).artifact.id == sound.artifact.id
    assert [task for task, number in again.ran].count("read") == path.startswith("read")
    assert again.ran.count((path[:4], 1)) == 1


def test_a_record_that_cannot_be_read_is_none(tmp_path: Path):
    found = Work(str(tmp_path))
    found.finish("read", 0, {}, {"count": 1})
    assert found.record("read", 0)
    for damaged in (b'{"count', b"[]", b"5", b'{"count": 1}', b'{"count": 1, "sha256": ["facts"]}'):
        (tmp_path / "read/000000.json").write_bytes(damaged)
        assert found.record("read", 0) is None


async def test_a_full_disk_is_unavailable_and_what_is_finished_is_kept(
    built: Any, source: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for owner, name in ((journal, "make_directory"), (Documents, "write"), (engine, "write_premises")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises(Unavailable, match=r"is full .*free space and build again"):
                await built(source())
    with monkeypatch.context() as patched:  # the disk of a worker's machine
        patched.setattr(Documents, "write", full)
        with pytest.raises(Unavailable, match=r"is full .*free space and build again"):
            stages.read(Plan.of("c", source(), text_bytes=1000), Work(str(tmp_path / "work")), 0)
    again = Here()
    assert (await built(source(), again)).premises
    assert not again.ran


async def test_two_commands_do_not_share_a_work(built: Any, source: Any, tmp_path: Path):
    with Work(str(tmp_path / "work")).alone(), pytest.raises(Unavailable, match=r"another command builds in .*/work"):
        await built(source())
    assert (await built(source())).premises


@pytest.mark.parametrize("is_first", [False, True])
async def test_the_work_stays_until_the_generation_is_activated(
    serve: Any, commanded: Any, source: Any, artifact_store: ArtifactStore, is_first: bool
):
    async with serve() as index:
        if not is_first:
            await index.client.build("c", source(FACTS[:20]))

        def activate_another(stage: str, *_: int) -> None:
            if stage == "indexing":
                with Client(index=f"127.0.0.1:{index.server.port}") as other:
                    other.index.build("c", source(FACTS[:30], "other.jsonl"))

        with pytest.raises(Aborted):
            await commanded(index, source(), on_progress=activate_another)
        again = Here()
        found = await commanded(index, source.again(), again)
        assert not again.ran
        assert [one.active.id async for one in index.client.list_corpora()] == [found.artifact.id]
    assert not any((artifact_store.root / command.FOLDER).iterdir())


async def test_a_corpus_whose_generation_does_not_open_is_built_again(
    serve: Any, commanded: Any, source: Any, artifact_store: ArtifactStore
):
    async with serve() as index:
        generation = await index.client.build("c", source())
    vectors = artifact_store.path("generations/c", generation.id) / "vectors.npy"
    vectors.write_bytes(vectors.read_bytes()[:-4])
    async with serve() as index:
        found = await commanded(index, source())
        assert [one.active.id async for one in index.client.list_corpora()] == [found.artifact.id]


@pytest.mark.parametrize("built_before", ["c", "d", None])
async def test_another_store_than_the_indexs_is_refused(
    serve: Any, commanded: Any, source: Any, built_before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AEENC_INDEX_ARTIFACTS_DIR", str(tmp_path / "elsewhere"))
    async with serve() as index:
        if built_before:
            await index.client.build(built_before, source())
        processes = Here()
        with pytest.raises(FailedPrecondition, match=r"other artifacts than .*/elsewhere; .*AEENC_INDEX_ARTIFACTS_DIR"):
            await commanded(index, source(), processes)
        assert bool(processes.ran) == (built_before is None), "an empty index shows it at the end"


async def test_abandoned_work_of_a_corpus_is_removed(
    serve: Any, commanded: Any, source: Any, artifact_store: ArtifactStore
):
    builds, digest = artifact_store.root / command.FOLDER, "0123456789abcdef"
    for name, written_at in (
        (f"c-{digest}", 0),
        (f"c-{digest[::-1]}", None),
        (f"c-d-{digest}", 0),
        (f"c-a{digest[1:]}", 0),
    ):
        file = builds / name / "read/000000.facts"
        file.parent.mkdir(parents=True)
        file.touch()
        if written_at is not None:
            os.utime(file, (written_at, written_at))
    async with serve() as index:
        with Work(str(builds / f"c-a{digest[1:]}")).alone():
            await commanded(index, source())
    assert {one.name for one in builds.iterdir()} == {f"c-{digest[::-1]}", f"c-d-{digest}", f"c-a{digest[1:]}"}


async def test_relative_paths_are_those_of_the_command_and_one_work_serves_several_plans(
    serve: Any, commanded: Any, source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def elsewhere(*_: Any) -> None:  # as the processes of a cluster
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "elsewhere")

    async with serve() as index:
        for count in (20, 30):
            source(FACTS[:count])
            monkeypatch.chdir(tmp_path)
            facts = read_facts(Path("facts.jsonl"))
            options = {"work": "kept", "on_progress": elsewhere}
            with pytest.raises(Unavailable, match="killed"):
                await commanded(index, facts, Here(until=2), **options)
        monkeypatch.chdir(tmp_path)
        assert (await commanded(index, facts, **options)).facts == 30
    assert len([*(tmp_path / "kept").iterdir()]) == 1, "the work of 20 facts"
    assert not any((tmp_path / "elsewhere").iterdir())


async def test_workers_of_a_cluster_are_not_counted_here(serve: Any, commanded: Any, source: Any):
    async with serve() as index:
        with pytest.raises(InvalidArgument, match=r"--workers 3 .*leave it out with --ray head:6379"):
            await commanded(index, source(), address="head:6379", workers=3)
