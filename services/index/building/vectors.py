"""Vectors on their way from the encoders to disk: a bounded number of batches, rows written in order of insertion.

The file is an ordinary .npy; its header gets the row count at the end. A half-written file claims no rows.
"""

from __future__ import annotations

import asyncio
import io
import os
import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from aeenc.calls.bulk import BulkEncoder
from aeenc.calls.encoding import Encoded, EncodeOptions
from aeenc.transport.channel import Channel
from services.corpus.arrays import are_unit, norms_of
from services.corpus.generation import DTYPES, Storage
from services.index.building.folding import Draft
from services.index.values import BuildOptions

_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class WrittenVectors:
    """The vectors of a file: rows of `dim` numbers, their CRC-32, largest norm, and how many texts were cut."""

    dim: int = 0
    storage: Storage = "float32"
    rows: int = 0
    crc32: int = 0
    largest_norm: float = 0.0
    truncated: int = 0


class VectorFile:
    """A .npy matrix of float32 or float16 that grows by rows. Blocks on the disk: call it in a thread.

    It continues a file behind the rows that are `written`, and cuts off what follows. Raises DataLoss when those rows
    have changed.
    """

    def __init__(self, path: Path, written: WrittenVectors) -> None:
        self.written = written
        self._dtype = np.dtype(DTYPES[written.storage])
        header = self._header(0)
        self._file = path.open("r+b" if written.rows else "wb")
        if written.rows:
            size_bytes = written.rows * written.dim * self._dtype.itemsize
            self._file.seek(len(header))
            if crc32_of(self._file, size_bytes) != written.crc32:
                self._file.close()
                raise errors.DataLoss(f"{path} has lost some of its {written.rows:,} vectors; build again")
            self._file.truncate(len(header) + size_bytes)
            self._file.seek(0)
        self._file.write(header)
        self._file.seek(0, os.SEEK_END)

    def append(self, rows: NDArray[np.float32], truncated: int = 0) -> None:
        """Appends rows (n, dim), `truncated` of them of texts that were cut."""
        stored = np.ascontiguousarray(rows, dtype=self._dtype)
        data = stored.tobytes()
        self._file.write(data)
        self.written = replace(
            self.written,
            rows=self.written.rows + len(rows),
            crc32=zlib.crc32(data, self.written.crc32),
            truncated=self.written.truncated + truncated,
            largest_norm=max(self.written.largest_norm, float(norms_of(stored).max(initial=0.0))),
        )

    def sync(self) -> None:
        """Syncs all rows to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Writes the row count into the header and closes the file, which is then complete."""
        self._file.seek(0)
        self._file.write(self._header(self.written.rows))
        self._file.close()

    def meta(self, corpus: str, space_id: str, premise_version: str, **engine: Any) -> dict[str, Any]:
        """Returns the `meta` of the manifest of a generation with these vectors."""
        cut = {"truncated": self.written.truncated} if self.written.truncated else {}
        return {
            "corpus": corpus,
            "space_id": space_id,
            "premise_version": premise_version,
            "dim": self.written.dim,
            "premises": self.written.rows,
            "storage": self.written.storage,
            "largest_norm": self.written.largest_norm,
            **engine,
            **cut,
        }

    def abandon(self) -> None:
        """Closes the file as it is; errors of the disk no longer matter."""
        with suppress(OSError):
            self._file.close()

    def _header(self, rows: int) -> bytes:
        """The file's header, which numpy pads to the same size for any number of rows."""
        buffer = io.BytesIO()
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (rows, self.written.dim)}
        np.lib.format.write_array_header_1_0(buffer, header)
        return buffer.getvalue()


class BatchEncoder:
    """Encodes the drafts of one build, in role premise, on all encoders behind `channel`.

    All batches must come from one version in one space. `space_id` asks for a space ("": the encoders' default), and
    `version` says which one has encoded others of the build ("": none); `truncate` cuts texts that are too long.
    """

    def __init__(
        self, channel: Channel, space_id: str, version: str, options: BuildOptions, *, truncate: bool = False
    ) -> None:
        self.space_id, self.version = space_id, version
        encode = EncodeOptions(role="premise", space_id=space_id, truncate=truncate)
        self._bulk = BulkEncoder(channel, encode, window=options.window, patience_s=options.patience_s)
        self._batches: deque[tuple[Sequence[Draft], asyncio.Future[Encoded] | None]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the oldest batch must be taken before another is put."""
        return len(self._batches) >= self._bulk.capacity

    @property
    def is_ready(self) -> bool:
        """Whether the oldest batch can be taken without waiting."""
        return bool(self._batches) and (self._batches[0][1] is None or self._batches[0][1].done())

    @property
    def is_empty(self) -> bool:
        """Whether all batches have been taken."""
        return not self._batches

    def put(self, drafts: Sequence[Draft]) -> None:
        """Starts to encode the drafts of a batch that have no vector in the base."""
        texts = [draft.text for draft in drafts if draft.base_ordinal is None]
        self._batches.append((drafts, self._bulk.submit(texts) if texts else None))

    async def take(self, base: NDArray[Any] | None) -> tuple[NDArray[np.float32], int]:
        """Takes the vectors (n, dim) of the oldest batch, new or those of `base`, and says how many texts were cut.

        Raises SpaceMismatch or FailedPrecondition when the encoder has changed, InvalidArgument naming the premise that
        it refuses, Unavailable when it does not answer.
        """
        drafts, answer = self._batches.popleft()
        encoded = None
        if answer is not None:
            try:
                encoded = await answer
            except errors.InvalidArgument as error:
                raise _naming_premise(error, [draft for draft in drafts if draft.base_ordinal is None]) from None
            self._check(encoded)
        rows = await asyncio.to_thread(_assemble, drafts, encoded.vectors if encoded else None, base)
        return rows, encoded.truncated if encoded else 0

    async def close(self) -> None:
        """Cancels the batches still at the encoders."""
        await self._bulk.close()

    def _check(self, encoded: Encoded) -> None:
        if self.space_id and encoded.space_id != self.space_id:
            raise errors.SpaceMismatch(
                f"the encoder answers in space {encoded.space_id}, this build is of space {self.space_id}; "
                "build the whole corpus in the new space, without a base generation"
            )
        if self.version and encoded.model_version != self.version:
            raise errors.FailedPrecondition(
                f"the premise encoder changed from {self.version} to {encoded.model_version} meanwhile; build again"
            )
        self.space_id, self.version = encoded.space_id, encoded.model_version


def crc32_of(file: BinaryIO, size_bytes: int) -> int | None:
    """Computes the CRC-32 of the next bytes of a file; None when it has fewer."""
    crc32, left = 0, size_bytes
    while left and (block := file.read(min(left, _BLOCK_BYTES))):
        crc32 = zlib.crc32(block, crc32)
        left -= len(block)
    return None if left else crc32


def _assemble(
    drafts: Sequence[Draft], encoded: NDArray[np.float32] | None, base: NDArray[Any] | None
) -> NDArray[np.float32]:
    if encoded is not None and not are_unit(encoded):
        raise errors.FailedPrecondition(
            "the encoder returned vectors that are not of unit length; replace its checkpoint"
        )
    new = np.array([draft.base_ordinal is None for draft in drafts])
    parts = [] if encoded is None else [(new, encoded)]
    if base is not None and not new.all():
        parts.append((~new, base[[draft.base_ordinal for draft in drafts if draft.base_ordinal is not None]]))
    matrix = np.empty((len(drafts), parts[0][1].shape[1]), dtype=np.float32)
    for where, rows in parts:
        matrix[where] = rows
    return matrix


def _naming_premise(error: errors.InvalidArgument, drafts: Sequence[Draft]) -> errors.InvalidArgument:
    """Turns an error about `texts[3]` of a batch into one that names the premise."""
    names = {f"texts[{number}]": f"premise {draft.id!r}" for number, draft in enumerate(drafts)}
    violations = [replace(one, field=names.get(one.field, one.field)) for one in error.violations]
    message = error.message
    for before, now in zip(error.violations, violations, strict=True):
        message = message.replace(before.field, now.field)
    return type(error)(message, reason=error.reason, violations=violations)
