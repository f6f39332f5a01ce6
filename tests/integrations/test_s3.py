"""Artifacts in S3, as moto's server speaks it: large files, one winner, a server that goes away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aeenc import errors
from services.corpus.active import read_active, write_active
from services.store.objects import Bucket, CachedStore
from support.servers.s3_server import SECRET, s3_server

FOLDER = "checkpoints"


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Runs an S3 server with the bucket `bucket`; s3fs finds it."""
    with s3_server(tmp_path) as (server, environment):
        monkeypatch.setattr(sys, "path", [*sys.path, environment["PYTHONPATH"]])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.integrations
def test_artifacts_lie_in_s3_as_they_lie_in_a_directory(s3: subprocess.Popen[str], tmp_path: Path):
    one, two = (CachedStore(tmp_path / name, Bucket("s3://bucket/aeenc")) for name in ("one", "two"))
    with one.writer("checkpoint", FOLDER) as writer:
        (writer.path / "small").write_text("some")
        (writer.path / "large").write_bytes(os.urandom(120_000_000))  # in parts
        written = writer.commit({}, id_prefix="q")
    one.push(FOLDER, written.id)
    for number in range(3):
        one.bucket.write(f"{FOLDER}/.build-x/part-{number}", b"1")
    assert two.list(FOLDER) == [written.id]
    assert {key.split("/")[1] for key in two._objects(FOLDER)} == {written.id}
    one.bucket.remove_below(f"{FOLDER}/.build-x")
    assert set(one.bucket.names(FOLDER)) == {written.id}
    assert two.open(FOLDER, written.id).manifest_sha256 == written.manifest_sha256

    def move(number: int) -> str:
        def check(active: str) -> None:
            if active:
                raise errors.Aborted(active)

        try:
            return write_active((one, two)[number % 2], "science", f"g{number}", check).generation
        except errors.Aborted:
            return ""

    with ThreadPoolExecutor(8) as threads:
        [winner] = filter(None, threads.map(move, range(16)))
    assert read_active(one, "science") == read_active(two, "science") == winner

    with one.writer("checkpoint", FOLDER) as writer:
        (writer.path / "small").write_text("other")
        other = one.push(FOLDER, writer.commit({}, id_prefix="q").id)
    one.delete(FOLDER, written.id)
    assert two.list(FOLDER) == [other.id]
    s3.kill()
    s3.wait()
    assert two.open(FOLDER, written.id).id == written.id, "a copy is served"
    with pytest.raises(errors.Unavailable, match="cannot be reached") as away:
        two.open(FOLDER, other.id)
    assert SECRET not in away.value.message
    assert read_active(two, "science") == winner
