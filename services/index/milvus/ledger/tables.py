"""A table in Milvus: a collection whose rows are found by their key, without anything to search for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymilvus import DataType, MilvusClient

from services.index.milvus.link import MilvusLink, MilvusNotFound, MilvusNotLoaded
from services.index.milvus.schema import K_MOST

_UNUSED = "unused"  # Milvus wants a vector in each collection


class Table:
    """A table by name. `fields` are its strings with their longest size in bytes, 0 for integers; the first is the key.

    Every method blocks.
    """

    def __init__(self, link: MilvusLink, name: str, fields: Mapping[str, int]) -> None:
        self.name = name
        self._link, self._fields = link, fields

    def open(self) -> None:
        """Creates the table if it does not exist, and loads it, as after a restart of Milvus."""
        if not self._call("has_collection"):
            self._create()
        self._call("load_collection")

    def put(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes rows, replacing those with the same keys."""
        self._call("upsert", data=[{**row, _UNUSED: [1.0, 0.0]} for row in rows])

    def find(self, expression: str, most: int = K_MOST) -> list[Mapping[str, Any]]:
        """Reads at most `most` rows, including all writes so far, in any order."""
        return list(
            self._read(filter=expression, output_fields=list(self._fields), limit=most, consistency_level="Strong")
        )

    def count(self) -> int:
        """Counts the rows, including all writes so far."""
        [row] = self._read(filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(row["count(*)"])

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes rows by their keys."""
        self._call("delete", ids=list(keys))

    def flush(self, patience_s: float) -> None:
        """Moves all writes so far into Milvus's storage."""
        self._call("flush", timeout_s=patience_s)

    def drop(self) -> None:
        """Drops the table if it exists."""
        try:
            if self._call("has_collection"):
                self._call("drop_collection")
        except MilvusNotFound:
            return

    def _create(self) -> None:
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        for place, (name, size_bytes) in enumerate(self._fields.items()):
            kind = (
                {"datatype": DataType.VARCHAR, "max_length": size_bytes} if size_bytes else {"datatype": DataType.INT64}
            )
            schema.add_field(name, is_primary=place == 0, **kind)
        schema.add_field(_UNUSED, DataType.FLOAT_VECTOR, dim=2)
        index = MilvusClient.prepare_index_params()
        index.add_index(_UNUSED, index_type="FLAT", metric_type="IP")
        self._call("create_collection", schema=schema, consistency_level="Strong")
        self._call("create_index", index_params=index, sync=False)  # it would sleep, then look; loading waits for it

    def _read(self, **arguments: Any) -> Any:
        try:
            return self._call("query", **arguments)
        except MilvusNotLoaded:
            self._call("load_collection")
            return self._call("query", **arguments)

    def _call(self, method: str, /, **arguments: Any) -> Any:
        return self._link.call(method, collection_name=self.name, **arguments)
