"""A distributed build into a Milvus: the generation that a stream would make."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aeenc import errors
from aeenc.adapters.facts import read_facts
from aeenc.transport.targets import Targets
from services.corpus.generation import Premises
from services.index.distributed.engine import Built, build
from services.index.distributed.plan import Plan
from services.index.distributed.stages import Encoders
from services.index.distributed.work import Work
from services.index.settings import IndexSettings
from services.index.values import EngineOptions, LexicalSettings
from services.kit.concurrency import run_in_thread
from services.store.artifacts import ArtifactStore
from support.servers.milvus_server import need_milvus

need_milvus()

from services.index.milvus.backend import loading_of  # noqa: E402
from services.index.milvus.writer import GenerationWriter, Loading  # noqa: E402


class Here:
    """Runs tasks one after the other in this process."""

    def run(self, task: Any, plan: Plan, url: str, arguments: Any) -> Any:
        for number, given in arguments.items():
            yield number, task(plan, Work(url), number, *given)


@pytest.fixture
def run(milvus: Any, prefix: str, encoder: Any, store: ArtifactStore, tmp_path: Path) -> Any:
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps({"id": f"f{n}", "text": f"fact {n // 2} of all"}) + "\n" for n in range(90)))

    async def built(**changes: Any) -> Built:
        address = {"backend": "milvus", "milvus_uri": milvus.uri, "milvus_prefix": prefix}
        settings = IndexSettings(**{**address, "milvus_timeout_s": 10.0, **changes})
        plan = Plan.of("science", read_facts(path), text_bytes=1000, storage="float32", shard_facts=20)
        encoders = Encoders(Targets(encoder=encoder.target), batch=8, patience_s=10.0)
        given = (plan, str(tmp_path / "work"), Here(), encoders, store, EngineOptions(), LexicalSettings())
        return await run_in_thread(partial(build, *given, into_milvus=partial(loading_of, settings, "science")))

    built.facts = lambda: read_facts(path)  # type: ignore[attr-defined]
    return built


async def test_it_is_the_generation_that_a_stream_into_milvus_makes(
    start: Any, run: Any, collections: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start() as index:
        streamed = await index.client.build("science", run.facts(), activate=False)
        monkeypatch.delattr(Premises, "of")  # the premises' lines stay on disk
        assert (await run()).artifact.id == streamed.id, "the id is a hash of all files"
        assert len(collections()) == 1, "what is there already is not kept twice"


async def test_an_index_serves_what_it_did_not_build(start: Any, run: Any) -> None:
    async with start() as index:
        found = await run()
        await index.client.verify("science", found.artifact.id)
        await index.client.activate("science", found.artifact.id)
        hits = await index.client.retrieve("science", ["which fact is 17?"], mode="lexical")
        assert hits[0][0].text == "fact 17 of all"


async def test_a_build_shows_that_it_is_alive_while_its_files_are_uploaded(
    run: Any, collections: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, push, beat = threading.Event(), ArtifactStore.push, GenerationWriter.beat

    def slow(*arguments: Any) -> Any:
        alive.clear()
        assert alive.wait(5), "a sweeper takes it for dead"
        return push(*arguments)

    monkeypatch.setattr(ArtifactStore, "push", slow)
    monkeypatch.setattr(GenerationWriter, "beat", lambda self: (beat(self), alive.set()))
    await run(milvus_lease_s=0.5)
    assert len(collections()) == 1


async def test_a_build_that_milvus_refuses_goes_on_behind_its_shards(
    run: Any, collections: Any, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> Any:
        raise errors.Unavailable("Milvus is away")

    with monkeypatch.context() as patched:
        patched.setattr(Loading, "send", refused)
        with pytest.raises(errors.Unavailable, match="away"):
            await run()
    assert not collections()
    encoder.servicer.encoded_premises.clear()
    assert (await run()).premises == 45
    assert not encoder.servicer.encoded_premises
