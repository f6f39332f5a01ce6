"""A disk that loses power: records what a program does to files, and shows every state in which it could be left.

The model is the one that POSIX allows. A file's content is safe as of its last fsync; later bytes may be there, cut off
or zeros. An entry of a directory (made, renamed, removed) is safe from the directory's next fsync on; before, it may or
may not be there, in any order. A rename happens whole or not at all. What a file holds is looked at whenever the
program calls fsync, rename, unlink, mkdir or rmdir, so everything it writes must lie below `root`.

`full_disk` is one without room.
"""

from __future__ import annotations

import os
import resource
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

HOOKED = ("rename", "replace", "link", "unlink", "mkdir", "rmdir")
HELPERS = {"sync_directory", "write_and_sync"}


@contextmanager
def full_disk(size_bytes: int) -> Iterator[None]:
    """Lets no file of this process grow over so many bytes within the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@dataclass
class Change:
    """One change of entries: `node` leaves `source` and comes to stand at `target`, both (directory, name)."""

    node: int
    source: tuple[int, str] | None
    target: tuple[int, str] | None
    safe: bool = False

    def touches(self, directory: int) -> bool:
        return directory in {place[0] for place in (self.source, self.target) if place}

    def apply(self, entries: dict[int, dict[str, int]]) -> None:
        if self.source is not None and entries.get(self.source[0], {}).get(self.source[1]) == self.node:
            del entries[self.source[0]][self.source[1]]
        if self.target is not None:
            entries.setdefault(self.target[0], {})[self.target[1]] = self.node


@dataclass(frozen=True)
class Point:
    """A moment: the changes of entries so far, which of them are pending, and the files' safe and present contents."""

    changes: tuple[Change, ...]
    pending: tuple[int, ...]
    contents: dict[int, tuple[bytes, bytes]]
    promises: tuple[Any, ...]


@dataclass(frozen=True)
class State:
    """Files (with content) and directories (None) by relative path, and what had been promised."""

    tree: dict[str, bytes | None]
    promises: tuple[Any, ...]

    def lay_out(self, root: Path) -> None:
        root.mkdir(parents=True)
        for path, content in sorted(self.tree.items()):
            if content is None:
                (root / path).mkdir(exist_ok=True)
            else:
                (root / path).write_bytes(content)


@dataclass
class TornDisk:
    """`with TornDisk(root) as disk:` records; `disk.promise(x)` notes what a caller may rely on from then on.

    It does as if the program had no fsync at `lost`, one of `synced`: the lines that asked for one.
    """

    root: Path
    lost: str = ""
    points: list[Point] = field(default_factory=list)
    synced: set[str] = field(default_factory=set)
    _changes: list[Change] = field(default_factory=list)
    _places: dict[int, tuple[int, str]] = field(default_factory=dict)
    _directories: set[int] = field(default_factory=set)
    _contents: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # safe, present
    _promises: list[Any] = field(default_factory=list)
    _pins: dict[int, int] = field(default_factory=dict)  # open descriptors, so that no inode number comes again
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> TornDisk:
        self.root.mkdir(parents=True, exist_ok=True)
        self._real = {name: getattr(os, name) for name in ("fsync", *HOOKED)}
        self._changes.append(Change(self.root.stat().st_ino, None, (0, "")))
        self._look()
        for change in self._changes:
            change.safe = True
        self._contents = {node: (present, present) for node, (_, present) in self._contents.items()}
        self._patches = [mock.patch.object(os, "fsync", self._fsync)]
        self._patches += [mock.patch.object(os, name, self._hooked(name)) for name in HOOKED]
        for patch in self._patches:
            patch.start()
        self._note()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()
        self._look()
        self._note()
        for descriptor in self._pins.values():
            os.close(descriptor)

    def promise(self, what: Any) -> None:
        with self._lock:
            self._promises.append(what)
            self._look()
            self._note()

    def states(self) -> Iterator[State]:
        """Every state in which the power may have gone, each once."""
        seen = set()
        for point in self.points:
            for pending in subsets(point.pending):
                chosen = set(range(len(point.changes))) - set(point.pending) | set(pending)
                entries = entries_of([point.changes[number] for number in sorted(chosen)])
                for contents in contents_of(point.contents):
                    state = State(tree_of(entries, contents), point.promises)
                    key = (tuple(sorted(state.tree.items(), key=lambda one: one[0])), len(state.promises))
                    if key not in seen:
                        seen.add(key)
                        yield state

    def _hooked(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._look()
                self._note()
                try:
                    return self._real[name](*arguments, **options)
                finally:
                    self._look()
                    self._note()

        return call

    def _fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        with self._lock:
            self._look()
            node, line = os.fstat(descriptor).st_ino, caller()
            if node not in {*self._directories, *self._contents}:
                return  # of another part of the program
            self.synced.add(line)
            if line == self.lost:
                return
            if node in self._directories:
                for change in self._changes:
                    change.safe = change.safe or change.touches(node)
            else:
                self._contents[node] = (self._contents[node][1],) * 2
            self._note()

    def _look(self) -> None:
        """Compares the real tree with the last one seen and notes what has changed."""
        places: dict[int, tuple[int, str]] = {}
        self._walk(self.root, places)
        taken = set(places.values())
        for node, source in self._places.items():
            target = places.get(node)
            if target != source and (target is not None or source not in taken):  # else a rename has replaced it
                self._changes.append(Change(node, source, target))
        for node, target in places.items():  # parents before children
            if node not in self._places:
                self._changes.append(Change(node, None, target))
        self._places = places

    def _walk(self, directory: Path, places: dict[int, tuple[int, str]]) -> None:
        own = directory.stat().st_ino
        self._directories.add(own)
        for entry in sorted(os.scandir(directory), key=lambda one: one.name):
            info = entry.stat(follow_symlinks=False)
            places[info.st_ino] = (own, entry.name)
            if info.st_ino not in self._pins:
                self._pins[info.st_ino] = os.open(entry.path, os.O_PATH | os.O_NOFOLLOW)
            if stat.S_ISDIR(info.st_mode):
                self._walk(Path(entry.path), places)
            else:
                safe = self._contents.get(info.st_ino, (b"", b""))[0]
                self._contents[info.st_ino] = (safe, Path(entry.path).read_bytes())

    def _note(self) -> None:
        pending = tuple(number for number, change in enumerate(self._changes) if not change.safe)
        point = Point(tuple(self._changes), pending, dict(self._contents), tuple(self._promises))
        if [point] != self.points[-1:]:
            self.points.append(point)


def caller() -> str:
    """The line of the program that wants the fsync; of a helper that does nothing else, the line that calls it."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in HELPERS and frame.f_back is not None:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def subsets(pending: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """None, all, each beginning, and all but one: what may have reached the disk of changes that were not synced."""
    for length in range(len(pending) + 1):
        yield pending[:length]
    for number in range(len(pending)):
        yield pending[:number] + pending[number + 1 :]
        yield (pending[number],)


def contents_of(contents: dict[int, tuple[bytes, bytes]]) -> Iterator[dict[int, bytes]]:
    """All files as written, all as synced, cut off or zeros in between, and each one alone as synced."""
    yield {node: present for node, (_, present) in contents.items()}
    torn = {node for node, (safe, present) in contents.items() if safe != present}
    if torn:
        for tear in (safe_of, cut_off, zeroed):
            yield {node: tear(*pair) for node, pair in contents.items()}
        for node in torn:
            yield {one: pair[0] if one == node else pair[1] for one, pair in contents.items()}


def safe_of(safe: bytes, _present: bytes) -> bytes:
    return safe


def cut_off(safe: bytes, present: bytes) -> bytes:
    """The first half of what was written since."""
    return present if safe == present else present[: (min(len(safe), len(present)) + len(present)) // 2]


def zeroed(safe: bytes, present: bytes) -> bytes:
    """As long as it was, but the blocks that are new were never written."""
    return present if safe == present else safe[: len(present)].ljust(len(present), b"\0")


def entries_of(changes: Sequence[Change]) -> dict[int, dict[str, int]]:
    """Directories with their entries after changes in the order in which they were made."""
    entries: dict[int, dict[str, int]] = {}
    for change in changes:
        change.apply(entries)
    return entries


def tree_of(entries: dict[int, dict[str, int]], contents: dict[int, bytes]) -> dict[str, bytes | None]:
    """The tree below the root, by path."""
    tree: dict[str, bytes | None] = {}

    def descend(directory: int, path: str) -> None:
        for name, node in entries.get(directory, {}).items():
            tree[path + name] = contents.get(node)
            if node not in contents:
                descend(node, f"{path}{name}/")

    descend(entries[0][""], "")
    return tree
