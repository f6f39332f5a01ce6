"""`aeenc data fetch`: public data sets by name, each file checked against the git blob id of a fixed commit."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aeenc.cli.output import output_of
from aeenc.errors import AlreadyExists, DataLoss, Unavailable

ENTAILMENTBANK = (
    "https://raw.githubusercontent.com/allenai/entailment_bank/daac2fdb7ab52ec3ef8f2953f59288c1edd7c2f0/"
    "data/public_dataset/entailment_trees_emnlp2021_data_v2"
)
# file -> git blob id at that commit
ENTAILMENTBANK_FILES = {
    "dataset/task_1/train.jsonl": "82335c340bac391c83015aef522e56ef40d6f263",
    "dataset/task_1/dev.jsonl": "d4a519c581b7d7737b75c0ceaa70c8365feb1233",
    "dataset/task_1/test.jsonl": "a0c64843ae49f789d74758bf143dcccf8dcf8ba5",
    "dataset/task_2/train.jsonl": "c508dea8c9256e7dfa78ce4c100177a815734839",
    "dataset/task_2/dev.jsonl": "fc909f2f155892e863ba0becfa03e243477c88f5",
    "dataset/task_2/test.jsonl": "f400415f8d5158882bf491351141b3372f8f90c1",
    "supporting_data/worldtree_corpus_sentences_extended.json": "120616a7a7f4b313eb5936ba5e8f84a3c039b18c",
}
FILE_BYTES = 64 * 1024 * 1024  # the largest file has about 6 MB
READ_TIMEOUT_S = 30.0


class Name(StrEnum):
    """A data set that can be fetched."""

    ENTAILMENTBANK = "entailmentbank"


def blob_id(content: bytes) -> str:
    """The id that git gives to a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def fetch_entailmentbank(
    folder: Path,
    *,
    url: str = ENTAILMENTBANK,
    files: dict[str, str] = ENTAILMENTBANK_FILES,
    on_progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Fetches EntailmentBank into `folder`, whole or not at all; False when it is there already.

    Raises Unavailable when a file cannot be fetched, DataLoss when one is not what the commit holds, AlreadyExists when
    `folder` holds something else.
    """
    if folder.exists() and any(folder.iterdir()):
        _check_there(folder, files)
        return False
    with _temporary(folder) as temporary:
        for number, (name, expected) in enumerate(files.items(), start=1):
            content = _download(f"{url}/{name}")
            if blob_id(content) != expected:
                raise DataLoss(f"{url}/{name} is not the expected file (git blob {expected}); nothing was kept")
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if on_progress is not None:
                on_progress(number, len(files))
        temporary.rename(folder)
    return True


def _check_there(folder: Path, files: dict[str, str]) -> None:
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or blob_id(path.read_bytes()) != expected:
            raise AlreadyExists(
                f"{folder} exists and its {name} is not the expected one; remove it, or give another --to"
            )


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, gone at the end unless renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=READ_TIMEOUT_S) as response:  # noqa: S310 -- the caller's fixed https URL
            content: bytes = response.read(FILE_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url} cannot be fetched: {error}") from None
    if len(content) > FILE_BYTES:
        raise DataLoss(f"{url} is larger than {FILE_BYTES} bytes; nothing was kept")
    return content


def fetch(
    context: typer.Context,
    name: Annotated[Name, typer.Argument(help="The data set.")],
    to: Annotated[Path | None, typer.Option(show_default="data/NAME", help="Where to put it.")] = None,
) -> None:
    """Downloads a public data set. Each file is checked; on a mismatch nothing is kept."""
    folder = to or Path("data") / name.value
    out = output_of(context)
    with out.progress(f"fetching {name.value}", "files") as report:
        fetched = fetch_entailmentbank(folder, on_progress=lambda done, total: report(done, total, ""))
    out.result({"name": name.value, "folder": str(folder), "files": len(ENTAILMENTBANK_FILES), "fetched": fetched})


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    data = typer.Typer(help="Data sets.", no_args_is_help=True)
    data.command("fetch")(fetch)
    app.add_typer(data, name="data")
