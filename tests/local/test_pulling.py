"""`aeenc model pull`: from a web server into an empty home, then served; and what it refuses, with nothing kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aeenc import errors
from aeenc.cli.main import app
from aeenc.values import Premise
from services.local.pulling import pull
from services.store.artifacts import MANIFEST, ArtifactStore
from support.models.tiny_checkpoints import TinyCheckpoint, write_tiny_checkpoint
from support.torn_disk import full_disk
from support.worlds.light_fleet import LightFleet, light_fleet
from support.worlds.trainer_world import FACTS, QUERIES

__all__ = ["light_fleet"]

CARD = {"data": [{"name": "EntailmentBank", "licence": "CC BY 4.0"}, {"name": "WorldTree", "licence": "CC BY-SA 3.0"}]}


@pytest.fixture
def release(tmp_path: Path) -> TinyCheckpoint:
    """A trained checkpoint as it is published, with its card."""
    made = write_tiny_checkpoint(ArtifactStore(tmp_path / "releases"), seed=7, base_version="q0")
    (made.artifact.path / "card.json").write_text(json.dumps(CARD))
    return made


@pytest.fixture
def address(release: TinyCheckpoint) -> Iterator[str]:
    """Where a web server of this machine has it."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/moved/"):
                return super().do_GET()
            self.send_response(302)
            self.send_header("Location", f"http://models.example/{self.path.removeprefix('/moved/')}")
            return self.end_headers()

    handler = partial(Handler, directory=str(release.artifact.path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_a_model_is_pulled_published_and_retrieves_within_a_minute(
    light_fleet: LightFleet, release: TinyCheckpoint, address: str
):
    started = time.monotonic()
    words = ["--json", "model", "pull", address, "--sha256", release.artifact.manifest_sha256]
    words += ["--artifacts", str(light_fleet.store.root)]
    ended = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert (told["version"], told["card"]) == (release.version, CARD)
    client = light_fleet.client
    await client.index.build("science", [Premise(id=f"p{n}", text=text) for n, text in enumerate(FACTS)])
    assert (await client.registry.publish(release.version, wait_s=30, force=True)).complete
    found = await client.index.retrieve("science", [QUERIES[0]], k=3)
    assert (found.model_version, len(found[0])) == (release.version, 3)
    assert time.monotonic() - started < 60
    again = light_fleet.store.open("checkpoints", release.version)
    assert pull(str(release.artifact.path), light_fleet.store)[0].path == again.path, "a directory does, too"


async def test_a_deleted_version_is_not_brought_back_by_publishing_it(light_fleet: LightFleet, release: TinyCheckpoint):
    pull(str(release.artifact.path), light_fleet.store)
    registry, trainer = light_fleet.client.registry, light_fleet.client.trainer
    await registry.publish(release.version, label="trial", force=True)
    await registry.delete_label("trial")
    await trainer.delete_checkpoint(release.version)
    with pytest.raises(errors.NotFound):
        await registry.publish(release.version, label="trial", force=True)


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Rewrites the manifest of a release."""

    def rewrite(release: Path) -> None:
        manifest = json.loads((release / MANIFEST).read_bytes())
        change(manifest)
        (release / MANIFEST).write_text(json.dumps(manifest))

    return rewrite


def _replace(name: str, content: bytes) -> Callable[[Path], None]:
    """Replaces a file, and what the manifest says of it."""

    def replace(release: Path) -> None:
        (release / name).write_bytes(content)
        entry = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
        _manifest(lambda one: one["files"].update({name: entry}))(release)

    return replace


def _link(release: Path) -> None:
    (release / "tokenizer.json").rename(release.parent / "elsewhere.json")
    (release / "tokenizer.json").symlink_to(release.parent / "elsewhere.json")


WRONG: dict[str, tuple[Callable[[Path], object], type[errors.AeencError], str]] = {
    "a file of other content": (lambda to: (to / "probes.json").write_text("[]"), errors.DataLoss, "sha256"),
    "a larger file": (lambda to: os.truncate(to / "probes.json", 10**6), errors.DataLoss, "is larger than"),
    "a path": (
        _manifest(lambda one: one["files"].update({"../x": one["files"]["probes.json"]})),
        errors.DataLoss,
        "forged",
    ),
    "a pickle": (_replace("model.pkl", b"\x80\x04."), errors.DataLoss, "holds 'model.pkl'"),
    "a link": (_link, errors.Unavailable, "tokenizer.json cannot be read"),
    "a pipe": (lambda to: ((to / "probes.json").unlink(), os.mkfifo(to / "probes.json")), errors.DataLoss, "regular"),
    "no ONNX": (_replace("model.onnx", b"\x00" * 64), errors.DataLoss, "model.onnx"),
    "no safetensors": (_replace("model.safetensors", b"\x00" * 64), errors.DataLoss, "model.safetensors"),
    "another id": (_manifest(lambda one: one.update(id=one["id"][:-1] + "g")), errors.DataLoss, "it is forged"),
    "another kind": (_manifest(lambda one: one.update(kind="generation")), errors.DataLoss, "is a generation"),
    "no card": (lambda to: (to / "card.json").unlink(), errors.Unavailable, "card.json"),
    "no licence": (lambda to: (to / "card.json").write_text('{"data": [{"name": "x"}]}'), errors.DataLoss, "licence"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_by_name_and_nothing_is_kept(release: TinyCheckpoint, tmp_path: Path, what: str):
    spoil, kind, said = WRONG[what]
    spoil(release.artifact.path)
    store = ArtifactStore(tmp_path / "home")
    with pytest.raises(kind, match=said):
        pull(str(release.artifact.path), store)
    assert [one.name for one in (store.root / "checkpoints").iterdir()] == [".writing.lock"]


def test_a_full_disk_is_named_and_not_the_source(release: TinyCheckpoint, tmp_path: Path):
    store = ArtifactStore(tmp_path / "home")
    full = f"the disk of {store.root}/checkpoints is full.*free space there"
    with full_disk(2000), pytest.raises(errors.Unavailable, match=full):
        pull(str(release.artifact.path), store)


def test_another_manifest_a_larger_model_and_an_open_address_are_refused(
    release: TinyCheckpoint, tmp_path: Path, address: str
):
    store = ArtifactStore(tmp_path / "home")
    with pytest.raises(errors.DataLoss, match="has sha256"):
        pull(address, store, sha256="0" * 64)
    with pytest.raises(errors.TooLarge, match="over the limit"):
        pull(address, store, max_bytes=1000)
    for open_address in ("http://models.example/one", "ftp://127.0.0.1/one", "file:///etc"):
        with pytest.raises(errors.InvalidArgument, match="is not https"):
            pull(open_address, store)
    for no_address in (f"{address}/modèle", f"{address}/my model", "https://models..example", "http://[models"):
        with pytest.raises(errors.InvalidArgument, match=r"is no address \(.*\); correct it"):
            pull(no_address, store)
    for nothing_there in (f"{address}/elsewhere", "http://127.0.0.1:1"):
        with pytest.raises(errors.Unavailable, match=re.escape(f"{nothing_there}/card.json cannot be read")):
            pull(nothing_there, store)
    with pytest.raises(errors.InvalidArgument, match=r"http://models\.example/card\.json is not https"):
        pull(f"{address}/moved", store)
    assert store.list("checkpoints") == []
