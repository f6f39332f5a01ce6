"""Builds: what is streamed is checked, folded, encoded once and committed whole, or nothing of it is left."""

import errno
import json

from aeenc import errors
from services.index.building import vectors
from services.index.lexical.bm25 import ARRAYS, SETTINGS, WORDS
from support.worlds.index_world import SPACE, facts, files_of, premise, raises


async def test_a_full_disk_is_unavailable_and_leaves_what_was_there(index, monkeypatch):
    before = await index.client.build("science", facts()[:3])
    files = files_of(index.store)

    def full(self, *rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(vectors.VectorFile, "append", full)
    await raises(errors.Unavailable, index.client.build("science", facts(), resume_s=0), "disk is full")
    assert files_of(index.store) == files
    assert (await anext(index.client.list_corpora())).active.id == before.id


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
