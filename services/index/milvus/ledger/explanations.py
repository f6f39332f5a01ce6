"""The explanations of each corpus in a Milvus: one table for each state of them, and a switch to the next one.

    read the last table ──► join ──► write a table of its own ──► make the next switch ──► drop the one before
             ▲                                                        │ another was faster
             └────────────────────────────────────────────────────────┘

So a change is seen whole or not at all, and none of two processes that change at once undoes the other. A row of kind
`explaining` names a table that does not count yet or no more, for the sweeper. Every method blocks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aeenc import errors
from services.index.milvus.ledger.records import Records
from services.index.milvus.ledger.switches import Switch, Switches
from services.index.milvus.ledger.tables import Table
from services.index.milvus.link import MilvusLink, MilvusNotFound
from services.index.milvus.schema import TEXT_BYTES
from services.index.ranking.prior import joined
from services.index.values import Explanation
from services.store.formats import check_format

FORMAT_VERSION = 1
ROWS_AT_ONCE = 256  # 16 MB at most
PLACE, BODY = "place", "body"


class ExplanationTables:
    """The tables under the prefix of `records`. Row 0 says how many explanations follow."""

    def __init__(self, link: MilvusLink, records: Records) -> None:
        self._link, self._records = link, records
        self._switches = Switches(link, records.prefix, records.name, "explained")

    def last(self) -> Mapping[str, Switch]:
        """Finds the last switch of each corpus."""
        return self._switches.last()

    def read(self, corpus: str, switch: Switch | None) -> list[Explanation]:
        """Reads the explanations that count since a switch.

        Raises MilvusNotFound for a table that gave way to another, DataLoss for one that lacks rows or cannot be read.
        """
        if switch is None:
            return []
        try:
            return self._read(switch.collection)
        except (ValueError, KeyError, TypeError, MilvusNotFound) as error:
            if isinstance(error, MilvusNotFound) and self.last().get(corpus) != switch:
                raise
            raise errors.DataLoss(
                f"the explanations of corpus {corpus!r} in {switch.collection} cannot be read ({error}); put them "
                "again, with replace"
            ) from error

    def put(self, corpus: str, added: Sequence[Explanation], *, replace: bool) -> int:
        """Joins explanations with those that count, or replaces them; returns how many there are then.

        Raises InvalidArgument for one that is too long for a row.
        """
        while True:
            before = self.last().get(corpus)
            try:
                now = joined([] if replace else self.read(corpus, before), added)
            except MilvusNotFound:
                continue
            if self._switch(corpus, before, list(_rows(now))):
                return len(now)

    def _switch(self, corpus: str, before: Switch | None, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Writes a table and makes it count. Returns False if another process was faster."""
        name, number = f"{self._records.prefix}_e_{uuid.uuid4().hex}", (before.number if before else 0) + 1
        self._write(name, rows)
        if before:  # it is not dropped while it counts
            self._records.put_unfinished("explaining", before.collection, number)
        if not self._switches.make(corpus, number, name):
            self.drop(name)
            return False
        self._records.remove(name)
        if before:
            self._switches.spend(corpus, number)
            self.drop(before.collection)
        return True

    def drop(self, name: str) -> None:
        """Drops a table that does not count, and its row."""
        self._table(name).drop()
        self._records.remove(name)

    def _read(self, name: str) -> list[Explanation]:
        """Raises ValueError, KeyError or TypeError for rows that cannot be read."""
        table, found = self._table(name), list[Explanation]()
        [first] = table.find(f"{PLACE} == 0")
        record = json.loads(first[BODY])
        check_format(record, FORMAT_VERSION, name)
        count = int(record["explanations"])
        for start in range(1, count + 1, ROWS_AT_ONCE):
            rows = table.find(f"{PLACE} >= {start} and {PLACE} < {start + ROWS_AT_ONCE}")
            found += map(_explanation, sorted(rows, key=lambda row: int(row[PLACE])))
        if len(found) != count:
            raise ValueError(f"it has {len(found):,} of {count:,} rows")
        return found

    def _write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        table = self._table(name)
        for beat, start in enumerate(range(0, len(rows), ROWS_AT_ONCE)):
            self._records.put_unfinished("explaining", name, beat)
            if not start:
                table.open()
            table.put(rows[start : start + ROWS_AT_ONCE])

    def _table(self, name: str) -> Table:
        return Table(self._link, name, {PLACE: 0, BODY: TEXT_BYTES})


def _rows(explanations: Sequence[Explanation]) -> Iterator[Mapping[str, Any]]:
    first = {"format_version": FORMAT_VERSION, "explanations": len(explanations)}
    yield {PLACE: 0, BODY: json.dumps(first)}
    for place, one in enumerate(explanations, start=1):
        body = json.dumps([one.text, one.premise_ids], ensure_ascii=False)
        if (size_bytes := len(body.encode())) > TEXT_BYTES:
            raise errors.InvalidArgument.field(
                "explanations",
                f"that of {one.text[:40]!r} takes {size_bytes:,} bytes, a row in Milvus {TEXT_BYTES:,}; give fewer ids",
            )
        yield {PLACE: place, BODY: body}


def _explanation(row: Mapping[str, Any]) -> Explanation:
    text, ids = json.loads(row[BODY])
    return Explanation(str(text), tuple(map(str, ids)))
