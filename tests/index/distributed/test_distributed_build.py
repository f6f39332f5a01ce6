"""A distributed build: the generation that a stream would make, resumed task by task, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aeenc.adapters.facts import read_facts
from aeenc.errors import AeencError, DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from aeenc.transport.targets import Targets
from services.index.distributed import stages
from services.index.distributed.engine import Built, build
from services.index.distributed.plan import Plan
from services.index.distributed.stages import Encoders
from services.index.distributed.work import Work
from services.index.values import EngineOptions, LexicalSettings
from services.store.artifacts import ArtifactStore

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
        encoders = Encoders(Targets(encoder=encoder.target), batch=8, patience_s=1.0)
        given = (plan, str(tmp_path / "work"), processes or Here(), encoders)
        return await asyncio.to_thread(build, *given, artifact_store, engines, LexicalSettings())

    return run


@pytest.mark.parametrize("engines", [EngineOptions(), EngineOptions("ivf", storage="float16", recall=0.5)])
@pytest.mark.parametrize("sameness", ["EXACT", "NORMALIZED"])
async def test_the_generation_is_that_of_a_build_from_a_stream(
    serve: Any, built: Any, source: Any, sameness: str, engines: EngineOptions, tmp_path: Path
):
    facts = source()
    async with serve(engine=engines.engine, storage=engines.storage, recall=engines.recall, build_threads=1) as index:
        streamed = await index.client.build("c", facts, fold_similar=sameness == "NORMALIZED", activate=False)
        found = await built(facts, engines=engines, sameness=sameness)
        assert found.artifact.id == streamed.id, "the id is a hash of all files"
        assert (found.facts, found.premises) == (len(FACTS), streamed.premises)
        assert streamed.premises < len(FACTS)
        await index.client.verify("c", found.artifact.id)
    assert not any((tmp_path / "work").rglob("*.*")), "the work is removed"


async def test_an_index_serves_what_it_did_not_build(serve: Any, built: Any, source: Any):
    async with serve() as index:
        found = await built(source())
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
    wrong = [*FACTS, {"id": "f3", "text": "something else"}]
    with pytest.raises(InvalidArgument, match=r"fact 3: its id is used at .*facts\.jsonl: fact 4, too, for another"):
        await built(source(wrong))
    with pytest.raises(InvalidArgument, match="with other splits"):
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
    found = await built(source(), again)
    assert again.ran == [("encode", 2)]
    assert found.shards_encoded == 1
