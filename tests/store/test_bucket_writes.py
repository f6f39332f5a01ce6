"""A bucket on a disk: who reads what is replaced or evicted meanwhile reads it whole; what is absent costs nothing."""

from __future__ import annotations

import gc
import os
import shutil
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from store.test_objects import FOLDER, commit

from aeenc import errors
from services.store.objects import Bucket, CachedStore

KEY = "replicas/one.json"


@pytest.mark.parametrize("durable", [True, False])
def test_who_is_reading_an_object_while_it_is_replaced_reads_the_old_one_to_its_end(
    tmp_path: Path, durable: bool
) -> None:
    bucket = Bucket(f"file://{tmp_path}")
    bucket.write(KEY, b"the old content", durable=durable)
    with (tmp_path / KEY).open("rb", buffering=0) as reader:
        bucket.write(KEY, b"the new", durable=durable)
        assert reader.read() == b"the old content"
    assert bucket.read(KEY) == b"the new"
    assert bucket.names("replicas") == ["one.json"], "nothing is left beside it"


def test_a_copy_that_another_process_evicts_as_it_is_asked_for_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = CachedStore(tmp_path / "one", Bucket(f"file://{tmp_path / 'remote'}"))
    made = store.push(FOLDER, commit(store, weights="1").id)

    def evicted(manifest: Path) -> None:
        shutil.rmtree(manifest.parent)
        raise FileNotFoundError(manifest)

    monkeypatch.setattr(os, "utime", evicted)
    assert store.open(FOLDER, made.id) == made


def test_asking_for_what_nobody_has_leaves_nothing_in_memory(tmp_path: Path):
    store = CachedStore(tmp_path / "one", Bucket(f"file://{tmp_path / 'remote'}"))

    def ask(ids: Iterable[int]) -> None:
        for number in ids:
            with pytest.raises(errors.NotFound):
                store.open("checkpoints", f"q{number}")
        gc.collect()

    tracemalloc.start()
    try:
        ask(range(50))  # makes what is made once
        before, _ = tracemalloc.get_traced_memory()
        ask(range(50, 1050))
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()
