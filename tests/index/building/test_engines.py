"""Engines over a socket: built in a process of their own, named in answers, refused when damaged, float16 halved."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from aeenc import AsyncClient, errors
from services.index.__main__ import build
from services.index.building import index_process
from services.index.building.index_process import index_generation, train_ivf
from services.index.building.vectors import VectorFile, WrittenVectors
from services.index.dense.batcher import SearchBatcher
from services.index.lexical.bm25 import ARRAYS, SETTINGS, WORDS
from services.index.settings import IndexSettings
from services.index.values import EngineOptions
from services.store.artifacts import ArtifactStore
from support.waiting import until
from support.worlds.index_world import (
    SPACE,
    RunningEncoder,
    broken_build,
    facts,
    files_of,
    indexing_processes,
    premise,
    raises,
    vector_of,
    works,
)

KINDS = ["metal", "star", "plant", "frog", "cloud", "rock", "wave", "magnet", "glass", "seed"]
TEXTS = [f"{KINDS[n % 10]} {KINDS[n // 10 % 10]} of {n % 37} in {n % 53} or {n}" for n in range(1500)]
PREMISES = [premise(f"p{n}", text, splits=("train",) if n % 3 else ("dev",)) for n, text in enumerate(TEXTS)]
QUERIES = np.stack([vector_of(f"{KINDS[n % 10]} of {n % 37} in {n % 53}") for n in range(40)])
INDEX = "index.faiss"
QUICK = {"recall": 0.95, "build_threads": 1}
SYNC = {"build_sync_s": 0.01, "build_encode_timeout_s": 10.0}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store with corpus `science`, searched by IVF; copy it before you use it."""
    root = tmp_path_factory.mktemp("engines") / "artifacts"

    async def make() -> str:
        encoder = RunningEncoder()
        await encoder.server.start()
        async with build(settings(root, encoder)) as server:
            await until(lambda: server.readiness.answers)
            async with AsyncClient(index=f"127.0.0.1:{server.port}") as client:
                generation = await client.index.build("science", PREMISES)
        await encoder.stop()
        return generation.id

    return root, asyncio.run(make())


def settings(root: Path, encoder: RunningEncoder, engine: str = "ivf") -> IndexSettings:
    return IndexSettings(port=0, artifacts_dir=root, encoder_target=encoder.target, engine=engine, **QUICK)


@pytest.fixture
def science(built: tuple[Path, str], artifact_store: ArtifactStore) -> str:
    """The generation of `science`, in this test's own store."""
    shutil.copytree(built[0], artifact_store.root)
    return built[1]


async def search(index: Any, corpus: str = "science", **options: Any) -> Any:
    return await index.client.search(corpus, QUERIES, space_id=SPACE, k=10, **options)


def overlap(some: list[list[str]], others: list[list[str]]) -> float:
    return sum(len(set(a) & set(b)) for a, b in zip(some, others, strict=True)) / sum(map(len, others))


def damaged(store: ArtifactStore, generation: str, position: int) -> None:
    path = store.root / "generations/science" / generation / INDEX
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


async def test_an_approximate_engine_says_so_and_searches_exactly_where_asked(serve, science):
    async with serve() as index:
        info = (await anext(index.client.list_corpora())).active
        assert (info.id, info.engine, info.premises) == (science, "ivf", 1500)
        found, exact = await search(index), await search(index, exact=True)
        assert (found.exact, exact.exact) == (False, True)
        assert overlap(found.ids, exact.ids) >= 0.9
        one = await search(index, nprobe=1)
        assert overlap(one.ids, exact.ids) < overlap(found.ids, exact.ids)
        retrieved = await index.client.retrieve("science", [TEXTS[7]], k=3, drop_self=False)
        assert retrieved[0][0].text == TEXTS[7]
        assert (retrieved.exact, retrieved.precision) == (False, "")
        scanned = await index.client.retrieve("science", [TEXTS[7]], k=10, exact=True, drop_self=False)
        narrow = await index.client.retrieve("science", [TEXTS[7]], k=10, nprobe=1, drop_self=False)
        assert scanned.exact
        assert [hit.score for hit in narrow[0]] < [hit.score for hit in scanned[0]]
        [generation] = [one async for one in index.client.list_generations("science")]
        assert QUICK["recall"] <= generation.recall_at_10 <= 1
        dropped = await index.client.retrieve("science", [TEXTS[7]], k=3)
        assert len(dropped[0]) == 3
        assert TEXTS[7] not in [hit.text for hit in dropped[0]]
        best = [ids[0] for ids in found.ids]
        fewer = await search(index, splits=("dev",), exclude=best)
        assert all(len(ids) == 10 and not set(ids) & set(best) for ids in fewer.ids)
        assert all(int(one.removeprefix("p")) % 3 == 0 for ids in fewer.ids for one in ids)


async def test_breadth_of_another_engine_and_beyond_the_limit_is_refused(serve, artifact_store, science):
    async with serve() as index:
        await raises(errors.InvalidArgument, search(index, ef_search=16), "params.ef_search", "ivf", "nprobe")
        retrieved = index.client.retrieve("science", [TEXTS[7]], k=3, ef_search=16)
        await raises(errors.InvalidArgument, retrieved, "params.ef_search", "ivf")
        assert (await search(index, ef_search=16, exact=True)).exact
    async with serve(engine="hnsw", **QUICK) as index:
        await index.client.build("graph", PREMISES)
        await raises(errors.InvalidArgument, search(index, "graph", nprobe=4), "params.nprobe", "hnsw", "ef_search")
        await raises(errors.InvalidArgument, search(index, "graph", ef_search=4097), "params.ef_search", "4,096")
        assert (await search(index, "graph", ef_search=64)).ids


async def test_a_tampered_index_file_is_refused_by_name_and_the_active_generation_keeps_serving(
    serve, science, artifact_store
):
    async with serve() as index:
        other = await index.client.build("science", facts())
        damaged(artifact_store, science, -5)
        await raises(errors.DataLoss, index.client.activate("science", science), INDEX, "sha256")
        assert (await search(index)).generation == other.id


@pytest.mark.parametrize("position", [0, 9, 5000], ids=["kind", "rows", "codes"])
async def test_a_damaged_index_file_is_data_loss_when_opened(serve, science, artifact_store, position: int):
    damaged(artifact_store, science, position)
    async with serve() as index:
        await raises(errors.DataLoss, search(index), INDEX)
        assert INDEX in (await index.client.info()).service.state_reason
        await index.client.build("science", facts())
        assert (await index.client.info()).service.state_reason == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows, _: (rows[:, :16], {"dim": 16}), "its manifest says"),
        (lambda rows, index: (rows, train(index, rows[::-1])), "do not find themselves"),
    ],
    ids=["of another generation", "of other vectors"],
)
async def test_an_index_file_that_does_not_belong_to_its_vectors_is_data_loss(
    serve, science, artifact_store, change: Callable[..., Any], said: str
):
    source = artifact_store.open("generations/science", science)
    with artifact_store.writer("generation", "generations/science") as writer:  # each file is sound
        for name in source.files:
            shutil.copyfile(source.file(name), writer.path / name)
        rows, meta = change(np.load(source.file("vectors.npy")), writer.path / INDEX)
        np.save(writer.path / "vectors.npy", rows)
        other = writer.commit({**source.meta, **meta}, id_prefix="g").id
    async with serve() as index:
        await raises(errors.DataLoss, index.client.activate("science", other), said)
        assert (await search(index)).generation == science


def train(index: Path, rows: Any) -> dict[str, Any]:
    faiss.write_index(train_ivf(rows, 8), str(index))
    return {}


async def test_a_cancelled_build_ends_its_indexing(serve):
    async with serve(engine="hnsw") as index:
        call = asyncio.ensure_future(index.client.build("science", iter(PREMISES)))
        await until(lambda: bool(indexing_processes()), 20)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: not indexing_processes() and files_of(index.store) == {})


async def test_a_float16_generation_is_the_base_of_a_float32_one_and_the_other_way_round(serve):
    async with serve(storage="float16") as index:
        base = await index.client.build("science", PREMISES[:50])
        stored = np.load(index.store.root / "generations/science" / base.id / "vectors.npy")
        assert (stored.dtype, (await search(index)).exact) == (np.float16, True)
    async with serve() as index:
        changed = await index.client.build("science", [premise("n", "new")], base_generation=base.id)
        assert (await search(index)).generation == changed.id
    async with serve(storage="float16") as index:
        again = await index.client.build("science", [premise("m", "newer")], base_generation=changed.id)
        assert (again.premises, (await search(index)).generation) == (52, again.id)


def test_indexing_ends_with_the_process_that_asked_for_it(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "vectors.npy", rng.normal(size=(20_000, 64)).astype(np.float32))
    request = {"path": str(tmp_path), "engine": "hnsw", "recall": 0.99, "largest_norm": 20.0, "threads": 1}
    command = [sys.executable, "-m", "services.index.building.index_process"]
    ended = subprocess.run(
        command, input=f"{json.dumps(request)}\n", capture_output=True, text=True, timeout=20, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, ""), "it went on until it missed the premises"


async def test_an_indexing_process_that_died_before_it_was_asked_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr(index_process, "MODULE", "services.nothing")
    with pytest.raises(errors.Unavailable, match="ended with status 1, the log says why; build again"):
        await index_generation(tmp_path, EngineOptions(engine="hnsw"), 100_000, 1.0)


@pytest.mark.parametrize("limit", ["", "ulimit -f 1"])
async def test_a_disk_that_is_full_while_indexing_is_told_as_such(tmp_path, monkeypatch, limit):
    vectors = VectorFile(tmp_path / "vectors.npy", WrittenVectors(32))
    vectors.append(np.stack([vector_of(text) for text in TEXTS]))
    vectors.finish()
    if limit:  # of a file's size
        (started := tmp_path / "python").write_text(f'#!/bin/sh\n{limit}\nexec {sys.executable} "$@"\n')
        started.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(started))
    else:
        (tmp_path / INDEX).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        await index_generation(
            tmp_path, EngineOptions(engine="ivf"), vectors.written.rows, vectors.written.largest_norm
        )
    assert caught.value.errno == errno.ENOSPC


async def test_a_text_is_searched_as_widely_alone_as_beside_others(serve, science, monkeypatch):
    # what an approximate engine overlooks depends on how many it is asked for
    asked, search = [], SearchBatcher.search

    async def noted(self, served, queries, k, *args, **kwargs):
        asked.append((len(queries), k))
        return await search(self, served, queries, k, *args, **kwargs)

    monkeypatch.setattr(SearchBatcher, "search", noted)
    async with serve() as index:
        asked.clear()
        alone = await index.client.retrieve("science", [TEXTS[0], "metal"], k=5)
        beside = await index.client.retrieve(
            "science", [TEXTS[0], "metal", "star"], k=5, accepted=[[], [], ["p1", "p2", "p3"]]
        )
        assert sorted(asked[:2]) == [(1, 5), (1, 6)]
        assert sorted(asked[2:]) == [(1, 5), (1, 6), (1, 8)]
        assert [[one.id for one in beside[n]] for n in (0, 1)] == [[one.id for one in alone[n]] for n in (0, 1)]


async def test_a_build_that_was_gone_on_with_gives_the_generation_of_one_that_was_not(serve, encoder):
    halved = {"engine": "ivf", "storage": "float16", **SYNC, **QUICK}
    async with serve(**halved) as index:
        whole = await index.client.build("science", PREMISES)
        report = await broken_build(index, PREMISES, durable=1400, rows=1000)
    encoder.servicer.encoded_premises.clear()
    async with serve(**{**halved, "storage": "float32"}) as index:  # too late: the vectors are halves already
        resumed = await index.client.build("science", PREMISES, request_id="r")
        assert (resumed.id, resumed.engine) == (whole.id, "ivf")
        # a batch of the broken build may still be encoded behind its last row
        assert not set(encoder.servicer.encoded_premises) & {one.text for one in PREMISES[: report.encoded]}


async def test_a_build_whose_indexing_is_killed_goes_on_behind_its_vectors(serve, encoder):
    async with serve(engine="ivf", **SYNC, **QUICK) as index:
        call = asyncio.ensure_future(index.client.build("science", PREMISES, request_id="r"))
        found: list[int] = []

        def is_indexing() -> bool:
            found[:] = indexing_processes()
            return bool(found)

        await until(is_indexing)
        os.kill(found[0], signal.SIGKILL)
        generation = await call
        assert (generation.premises, generation.engine, generation.active) == (1500, "ivf", True)
        assert len(encoder.servicer.encoded_premises) < 2000, "all was encoded again"
        assert not works(index.store)


async def test_a_build_whose_indexing_always_dies_is_given_up(serve):
    async with serve(engine="ivf", **SYNC, **QUICK) as index:
        call = asyncio.ensure_future(index.client.build("science", PREMISES, request_id="r", resume_s=1.0))
        killed = set()
        while not call.done():
            with contextlib.suppress(ProcessLookupError):
                for process in indexing_processes():
                    os.kill(process, signal.SIGKILL)
                    killed.add(process)
            await asyncio.sleep(0.01)
        await raises(errors.Unavailable, call, "signal 9", "same request_id")
        assert len(killed) > 1
        assert len(works(index.store)) == 1, "what was durable is kept"


async def test_a_full_disk_is_unavailable_and_leaves_what_was_there(index, monkeypatch):
    before = await index.client.build("science", facts()[:3])
    files = files_of(index.store)

    def full(self, *rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(VectorFile, "append", full)
    await raises(errors.Unavailable, index.client.build("science", facts(), resume_s=0), "disk is full")
    assert files_of(index.store) == files
    assert (await anext(index.client.list_corpora())).active.id == before.id


async def test_a_generation_is_stamped_with_space_version_and_hashes(index):
    generation = await index.client.build("science", facts())
    manifest = json.loads((index.store.root / "generations/science" / generation.id / "manifest.json").read_text())
    tables = {f"premises.{name}" for name in ("starts.npy", "ids.npy", "texts.npy", "groups.npy", "groups.json")}
    assert set(manifest["files"]) == {"premises.jsonl", "vectors.npy", *tables, WORDS, SETTINGS, *ARRAYS}
    assert (generation.space_id, generation.engine, generation.dim, generation.premises) == (SPACE, "flat", 32, 10)
    assert generation.size_bytes == sum(entry["size_bytes"] for entry in manifest["files"].values())
