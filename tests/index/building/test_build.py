"""Builds: what is streamed is checked, folded, encoded once and committed whole, or nothing of it is left."""

import asyncio
import errno
import json

import numpy as np

from aeenc import errors
from aeenc.v1 import index_pb2
from services.index.building import vectors
from services.index.building.journal import BUILDS
from services.index.lexical.bm25 import ARRAYS, SETTINGS, WORDS
from support.waiting import until
from support.worlds.index_world import FACTS, SPACE, facts, files_of, premise, raises, vector_of


async def reports(index, *messages):
    async def requests():
        for message in messages:
            yield message

    stream = index.client._admin_channel.stream(index.client._admin.BuildGeneration, requests(), timeout_s=20)
    return [report async for report in stream]


def header(**fields):
    return index_pb2.BuildGenerationRequest(header=index_pb2.BuildHeader(corpus="science", **fields))


def chunk(*premises):
    return index_pb2.BuildGenerationRequest(premises=premises)


async def test_equal_texts_become_aliases_in_the_order_of_insertion(index, encoder):
    premises = [
        premise("a", "ice is cold", ["dev"]),
        premise("b", "fire is hot"),
        premise("c", "ice is cold", ["train", "facts"], ["c2"]),
    ]
    generation = await index.client.build("science", premises)
    assert generation.premises == 2
    assert encoder.servicer.encoded_premises == ["ice is cold", "fire is hot"]
    listed = [one async for one in index.client.list_premises("science")]
    assert [(one.id, list(one.aliases), list(one.splits)) for one in listed] == [
        ("a", ["c", "c2"], ["dev", "facts", "train"]),
        ("b", [], []),
    ]


async def test_bad_builds_are_refused_by_name_and_leave_nothing_behind(index):
    def build(*premises, corpus="science", **more):
        return index.client.build(corpus, premises, **more)

    good = premise("a", "ice is cold")
    await raises(errors.InvalidArgument, build(), "premises", "at least one")
    await raises(errors.InvalidArgument, build(good, premise("a", "fire")), "premises[1].id", "'a'")
    await raises(errors.InvalidArgument, build(good, premise("b", "fire", aliases=["a"])), "premises[1].aliases")
    await raises(errors.InvalidArgument, build(premise("b", "fire", aliases=["b"])), "premises[0].aliases")
    await raises(errors.InvalidArgument, build(premise("", "fire")), "premises[0].id", "empty")
    await raises(errors.InvalidArgument, build(premise("x" * 257, "fire")), "premises[0].id", "257")
    await raises(errors.InvalidArgument, build(premise("a", " ")), "premises[0].text", "empty")
    await raises(errors.TooLarge, build(premise("a", "é" * 8193)), "premises[0].text", "16,384")
    await raises(errors.InvalidArgument, build(premise("a", "x", [""])), "premises[0].splits")
    for corpus in ("", "../x", ".hidden", "a/b", "a" * 65, "ä"):
        await raises(errors.InvalidArgument, build(good, corpus=corpus), "header.corpus")
    await raises(errors.InvalidArgument, reports(index, chunk(good)), "header")
    await raises(errors.InvalidArgument, reports(index), "header")
    await raises(errors.InvalidArgument, reports(index, header(), header()), "header")
    await raises(errors.InvalidArgument, build(good, delete_ids=["a"]), "base_generation")
    await raises(errors.NotFound, build(good, base_generation="g1"), "science")
    assert files_of(index.store) == {}
    assert not [one async for one in index.client.list_corpora()]


async def test_a_build_keeps_a_bounded_number_of_batches_at_the_encoder(index, encoder):
    encoder.servicer.pause_s = 0.01
    await index.client.build("science", [premise(f"p{n}", f"fact {n}") for n in range(100)])
    assert 2 <= encoder.servicer.most_in_flight <= 4
    generation = await anext(index.client.list_generations("science"))
    stored = np.load(index.store.root / "generations/science" / generation.id / "vectors.npy", allow_pickle=False)
    assert stored.tobytes() == np.stack([vector_of(f"fact {n}") for n in range(100)]).tobytes()


async def test_a_retry_with_the_same_request_id_gets_the_finished_generation(serve, encoder):
    async with serve() as index:
        first = await index.client.build("science", facts(), request_id="r/1")
        encoder.servicer.encoded_premises.clear()
        again = await index.client.build("science", facts(), request_id="r/1")
        other = await index.client.build("science", facts()[:4], request_id="r/2")
    async with serve() as index:  # the memory of it survives a restart
        late = await index.client.build("science", facts(), request_id="r/1")
        active = (await anext(index.client.list_corpora())).active.id
    assert first.id == again.id == late.id
    assert encoder.servicer.encoded_premises == FACTS[:4]
    assert active == other.id, "a late retry must not take the corpus back to an older generation"


async def test_a_build_cancelled_in_the_middle_leaves_nothing_visible(serve, encoder):
    encoder.servicer.pause_s = 0.05
    async with serve() as index:
        premises = [premise(f"p{n}", f"fact {n}") for n in range(400)]
        progress: list[tuple[int, int]] = []
        call = asyncio.ensure_future(
            index.client.build("science", premises, on_progress=lambda *seen: progress.append(seen))
        )
        await until(lambda: any(encoded > 0 for _, encoded in progress))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        # A slow machine may have synced the first premises by then: they are kept for a retry, which nobody sees.
        await until(lambda: all(BUILDS in str(path) for path in files_of(index.store)))
        assert not [one async for one in index.client.list_corpora()]
        await until(lambda: encoder.servicer.in_flight == 0)


async def test_what_a_killed_build_left_is_swept_at_the_next_start(serve, artifact_store):
    left = artifact_store.root / "generations/science/.tmp-dead"
    left.mkdir(parents=True)
    (left / "vectors.npy").write_bytes(b"half")
    async with serve() as index:
        assert not left.exists()
        assert not [one async for one in index.client.list_corpora()]


async def test_a_sweep_at_the_start_of_one_index_leaves_the_builds_of_another_alone(serve, encoder):
    encoder.servicer.pause_s = 0.05
    async with serve() as index:
        call = asyncio.ensure_future(index.client.build("science", [premise(f"p{n}", f"fact {n}") for n in range(100)]))
        await until(lambda: bool(encoder.servicer.encoded_premises))
        async with serve():
            assert (await call).premises == 100


async def test_a_build_without_an_encoder_names_it(serve, encoder):
    await encoder.stop()
    async with serve(build_encode_timeout_s=1.0) as index:
        await raises(errors.Unavailable, index.client.build("science", facts(), resume_s=0), encoder.target)
        assert files_of(index.store) == {}


async def test_a_premise_that_the_encoder_refuses_is_named(index, encoder):
    def refuse(request):
        if "fact 17" not in request.texts:
            return None
        field = f"texts[{list(request.texts).index('fact 17')}]"
        violation = errors.FieldViolation(field, "has 300 tokens, the model sees 256")
        return errors.InvalidArgument(f"{field}: has 300 tokens", violations=[violation])

    encoder.servicer.refuse = refuse
    call = index.client.build("science", [premise(f"p{n}", f"fact {n}") for n in range(60)])
    await raises(errors.InvalidArgument, call, "'p17'", "300 tokens")
    assert not [one async for one in index.client.list_corpora()]


async def test_a_full_disk_is_unavailable_and_leaves_what_was_there(index, monkeypatch):
    before = await index.client.build("science", facts()[:3])
    files = files_of(index.store)

    def full(self, *rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(vectors.VectorFile, "append", full)
    await raises(errors.Unavailable, index.client.build("science", facts(), resume_s=0), "disk is full")
    assert files_of(index.store) == files
    assert (await anext(index.client.list_corpora())).active.id == before.id


async def test_a_delta_encodes_only_what_is_new(index, encoder):
    base = await index.client.build("science", [*facts(), premise("copy", FACTS[1])])
    encoder.servicer.encoded_premises.clear()
    added = [premise("n1", "snow is cold"), premise("n2", FACTS[0]), premise("n3", FACTS[4])]
    changed = await index.client.build("science", added, base_generation=base.id, delete_ids=["f1", "f2", "f4"])
    assert encoder.servicer.encoded_premises == ["snow is cold"]
    listed = [(one.id, one.text, list(one.aliases)) async for one in index.client.list_premises("science")]
    kept = [(f"f{n}", FACTS[n], []) for n in (3, 5, 6, 7, 8, 9)]
    assert listed == [
        ("f0", FACTS[0], ["n2"]),
        ("copy", FACTS[1], []),
        *kept,
        ("n1", "snow is cold", []),
        ("n3", FACTS[4], []),
    ]
    stored = np.load(index.store.root / "generations/science" / changed.id / "vectors.npy", allow_pickle=False)
    assert stored.tobytes() == np.stack([vector_of(text) for _, text, _ in listed]).tobytes()
    gone = index.client.build("science", [], base_generation=changed.id, delete_ids=["f2"])
    await raises(errors.InvalidArgument, gone, "header.delete_ids", "f2")
    taken = index.client.build("science", [premise("f3", "new")], base_generation=changed.id)
    await raises(errors.InvalidArgument, taken, "f3")


async def test_a_delta_in_another_space_than_its_base_is_refused(index, encoder):
    base = await index.client.build("science", facts())
    encoder.servicer.space_id = "sother"
    call = index.client.build("science", [premise("n", "new")], base_generation=base.id)
    await raises(errors.SpaceMismatch, call, "sother", SPACE)


async def test_a_generation_is_stamped_with_space_version_and_hashes(index):
    generation = await index.client.build("science", facts())
    manifest = json.loads((index.store.root / "generations/science" / generation.id / "manifest.json").read_text())
    tables = {f"premises.{name}" for name in ("starts.npy", "ids.npy", "texts.npy", "groups.npy", "groups.json")}
    assert set(manifest["files"]) == {"premises.jsonl", "vectors.npy", *tables, WORDS, SETTINGS, *ARRAYS}
    assert (generation.space_id, generation.engine, generation.dim, generation.premises) == (SPACE, "flat", 32, 10)
    assert generation.size_bytes == sum(entry["size_bytes"] for entry in manifest["files"].values())
