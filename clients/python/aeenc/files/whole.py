"""Files and folders that appear whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from aeenc.errors import AlreadyExists, InvalidArgument


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Names the file that is written in an error of the system without a name, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and not isinstance(error, ConnectionError):  # what is written may come by a call
            error.filename = error.filename or str(path)
        raise


@contextmanager
def whole_file(path: Path | str, *, durable: bool = False) -> Iterator[TextIO]:
    """Opens a text file to write; it replaces the old one when the block ends without an error.

    A `durable` one is on disk then, and so are its name and the names of folders that were made for it.

    A pipe, a device and an open descriptor (`/dev/stdout`, also by `-`) are written as they are; of a link, the file
    behind it is replaced.
    """
    target = Path("/dev/stdout" if str(path) == "-" else path)
    descriptor = _descriptor(target)
    if target.exists() and (descriptor is not None or not target.is_file()):
        # Opened by its name, a descriptor's file would be written from its start, over what others have put there.
        opened = target if descriptor is None else os.dup(descriptor)
        # Path.open takes no descriptor.
        with naming(target), open(opened, "w", encoding="utf-8", newline="\n") as file:  # noqa: PTH123
            yield file
        return
    target = target.resolve()
    unknown = [target.parent, *(one.parent for one in target.parents if not one.exists())]
    temporary = _beside(target)
    try:
        with naming(target), temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    for folder in unknown if durable else ():
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write_json_lines(path: Path | str, records: Iterable[object], *, ensure_ascii: bool = False) -> int:
    """Writes values as lines of JSON, and returns how many. A reader sees the whole old file or the whole new one."""
    count = 0
    with whole_file(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=ensure_ascii) + "\n")
            count += 1
    return count


@contextmanager
def whole_folder(path: Path | str) -> Iterator[Path]:
    """Makes an empty folder to fill; it gets its name when the block ends without an error. Links are followed.

    Raises AlreadyExists unless the folder is empty or missing, InvalidArgument for stdout and the working directory.
    """
    if is_stdout(path):
        raise InvalidArgument(f"{path}: what is written is a folder, and stdout is none; give its name")
    target = Path(path).resolve()
    if target == Path.cwd():
        raise InvalidArgument(f"{path} is the working directory, which cannot be replaced; name a folder in it")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise AlreadyExists(f"{path} exists and is not an empty folder; remove it, or give another name")
    temporary = _beside(target)
    temporary.mkdir()
    try:
        with naming(target):
            yield temporary
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_stdout(path: Path | str) -> bool:
    """Whether a path names standard output."""
    return str(path) == "-" or _descriptor(Path(path)) == 1


def _descriptor(path: Path) -> int | None:
    """Returns the descriptor of this process that a path names."""
    if path.name.isdecimal() and str(path.parent) in {"/dev/fd", "/proc/self/fd"}:
        return int(path.name)
    return {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))


def _beside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{uuid.uuid4().hex}")  # without the name, which may be as long as a name may be
