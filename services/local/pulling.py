"""`aeenc model pull`: brings a checkpoint from a directory or a web server into the store of a home.

    SOURCE/card.json, manifest.json ──► each file that it names, streamed and hashed ──► the encoder's own checks
                                                                    checkpoints/VERSION ◄── one rename ┘

SOURCE is a checkpoint as it lies in ARTIFACTS_DIR/checkpoints, with a card beside it. Nothing is visible before it is
checked, and what is broken off starts anew. A checkpoint holds safetensors, plain ONNX, JSON and arrays of numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import IO, Annotated, Any
from urllib.parse import urlsplit

import typer

from aeenc.cli.main import Group
from aeenc.cli.options import taking
from aeenc.cli.output import output_of
from aeenc.errors import DataLoss, InvalidArgument, TooLarge, Unavailable
from aeenc.transport.addresses import is_loopback
from services.corpus.commands import store_of
from services.store.artifacts import BLOCK_BYTES, MANIFEST, MANIFEST_BYTES_MAX, Artifact, ArtifactStore, read_manifest
from services.store.files import full_disk_is_unavailable
from services.store.formats import damage_is_data_loss

FOLDER = "checkpoints"
CARD = "card.json"
CARD_BYTES_MAX = 1024 * 1024
READ_TIMEOUT_S = 30.0
MOST_MB = 2048
ID_DIGITS = 16  # of an artifact's id, after its prefix


def pull(
    source: str,
    store: ArtifactStore,
    *,
    sha256: str = "",
    max_bytes: int = MOST_MB * 1_000_000,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Artifact, dict[str, Any]]:
    """Brings a checkpoint into the store; returns it with its card. One that is there already is checked and stays.

    `sha256` is that of the manifest, which has those of all files; empty: any. Raises InvalidArgument for an address
    that is not https (http: of this machine alone), Unavailable where it does not answer, TooLarge for more than
    `max_bytes`, DataLoss naming what is forged, damaged, or not what an encoder loads.
    """
    with store.writer("checkpoint", FOLDER) as writer:
        _fetch(source, CARD, writer.path / CARD, CARD_BYTES_MAX)
        card = _card(writer.path / CARD, f"{source}/{CARD}")
        (writer.path / CARD).unlink()
        _fetch(source, MANIFEST, writer.path / MANIFEST, MANIFEST_BYTES_MAX)
        told = read_manifest(writer.path / MANIFEST, sha256.lower())
        (writer.path / MANIFEST).unlink()
        _check_described(told, source, max_bytes)
        done = 0
        for name, entry in told.files.items():
            if _fetch(source, name, writer.path / name, entry.size_bytes) != entry.sha256:
                raise DataLoss(f"{source}/{name} does not have the sha256 of its manifest; nothing was kept")
            done += entry.size_bytes
            on_progress(done, told.size_bytes)
        _check_content(told)

        def check_id(made: str) -> None:
            if made != told.id:
                raise DataLoss(f"{source}/{MANIFEST} names {told.id}, but its content is {made}; it is forged")

        return writer.commit(told.meta, id_prefix=told.id[:-ID_DIGITS], announce=check_id), card


def _check_described(told: Artifact, source: str, max_bytes: int) -> None:
    """Refuses by the manifest alone, before anything large is fetched."""
    from services.encoder.rollout.loading import FILES

    unknown = sorted(set(told.files) - FILES)
    if told.kind != "checkpoint" or unknown:
        held = f"holds {unknown[0]!r}" if told.kind == "checkpoint" else f"is a {told.kind}"
        raise DataLoss(f"{source} {held}; a checkpoint has some of {', '.join(sorted(FILES))}")
    if told.size_bytes > max_bytes:
        raise TooLarge(
            f"{source} has {told.size_bytes / 1e6:,.0f} MB, over the limit of {max_bytes / 1e6:,.0f}; raise --max-mb"
        )


def _check_content(told: Artifact) -> None:
    """Loads the checkpoint as an encoder does, reads what that leaves unread. Raises DataLoss, FailedPrecondition."""
    from safetensors import SafetensorError, safe_open

    from services.encoder.rollout.loading import load_model
    from services.local.models import OPTIONS

    with damage_is_data_loss(told.path, "nothing was kept"):
        load_model(told, OPTIONS, space_id=told.meta["space_id"])
        for name in told.files:
            if name.endswith(".json"):
                json.loads(told.file(name).read_bytes())
    if "model.safetensors" in told.files:
        try:
            with safe_open(told.file("model.safetensors"), "numpy"):
                pass
        except SafetensorError as error:
            raise DataLoss(f"model.safetensors of {told.id} cannot be read ({error}); nothing was kept") from None


def _card(path: Path, name: str) -> dict[str, Any]:
    """Reads a card: its `data` has what the model learned from, each with a name and a licence."""
    with damage_is_data_loss(name, "ask whoever publishes it"):
        card: dict[str, Any] = json.loads(path.read_bytes())
        if not card["data"] or not all(str(one["name"]) and str(one["licence"]) for one in card["data"]):
            raise ValueError("its data have no name and licence")
    return card


def _check_address(source: str) -> None:
    """Raises InvalidArgument for an address that others could answer for."""
    parts = urlsplit(source)
    is_here = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if "://" in source and parts.scheme != "https" and not is_here:
        raise InvalidArgument(f"{source} is not https; http is for this machine alone")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows only to addresses that could have been given."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opened(source: str, name: str) -> IO[bytes]:
    _check_address(source)
    if "://" in source:
        opener = urllib.request.build_opener(_Redirects)
        answer: IO[bytes] = opener.open(f"{source.rstrip('/')}/{name}", timeout=READ_TIMEOUT_S)
        return answer
    path = Path(source) / name
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataLoss(f"{path} is not a regular file; nothing was kept")
    return os.fdopen(descriptor, "rb")


def _fetch(source: str, name: str, to: Path, most: int) -> str:
    """Streams a file of at most so many bytes to the disk; returns its SHA-256."""
    digest, left = hashlib.sha256(), most
    try:
        full_disk = full_disk_is_unavailable(f"the disk of {to.parent.parent}", "free space there")
        with full_disk, _opened(source, name) as content, to.open("xb") as file:
            while block := content.read(min(BLOCK_BYTES, left + 1)):
                left -= len(block)
                if left < 0:
                    raise DataLoss(f"{source}/{name} is larger than {most:,} bytes; nothing was kept")
                digest.update(block)
                file.write(block)
    except (ValueError, InvalidURL) as error:
        raise InvalidArgument(f"{source}/{name} is no address ({error}); correct it") from None
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{source}/{name} cannot be read: {error}") from None
    return digest.hexdigest()


@taking(store=store_of)
def command(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A directory, or an https URL, with manifest.json and card.json.")],
    store: ArtifactStore,
    sha256: Annotated[
        str, typer.Option(show_default="any", help="That of manifest.json, which has those of all files.")
    ] = "",
    max_mb: Annotated[int, typer.Option(min=1, help="Refuse a larger model, in MB.")] = MOST_MB,
) -> None:
    """Brings a trained model into this home, whole or not at all, after the checks of an encoder.

    `aeenc publish VERSION` then serves it, and `aeenc.local.open(HOME, version=VERSION)`
    retrieves with it. The card says what data it learned from, under which licences.
    """
    out = output_of(context)
    with out.progress(f"pulling {source}", "bytes") as report:
        found, card = pull(
            source,
            store,
            sha256=sha256,
            max_bytes=max_mb * 1_000_000,
            on_progress=lambda done, total: report(done, total, ""),
        )
    told = {name: found.meta[name] for name in ("space_id", "dim", "base_version")}
    out.result({"version": found.id, **told, "size_bytes": found.size_bytes, "card": card})


def register(app: typer.Typer) -> None:
    """Brings trained models into a home."""
    group = typer.Typer(cls=Group, help=register.__doc__, no_args_is_help=True)
    group.callback()(lambda: None)
    group.command("pull")(command)
    app.add_typer(group, name="model")
