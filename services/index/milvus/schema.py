"""The layout of a premise in Milvus: fields, premises as rows and back, and expressions that filter rows.

The primary key is the ordinal, so that writing a premise again replaces it and ties have an order. Expressions hold
digests of ids and splits, never these names themselves, which may contain any character: nothing needs quoting, and
nothing can be injected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymilvus import CollectionSchema, DataType, MilvusClient

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.corpus.premises import Clause
from services.index.building.folding import ID_BYTES, SPLIT_BYTES, TAG_BYTES
from services.index.values import Scope

ORDINAL, VECTOR, TEXT = "ordinal", "vector", "text"
UNIT = "unit"  # the sparse vector scaled to length 1
IDS, SPLITS, TAGS = "ids", "splits", "tags"  # the id comes first, then its aliases
ID_KEYS, SPLIT_KEYS, TAG_KEYS = "id_keys", "split_keys", "tag_keys"
RECORD_FIELDS = [ORDINAL, TEXT, IDS, SPLITS, TAGS]
FOUND_FIELDS = [TEXT, IDS, VECTOR]  # those an answer needs; each field of each candidate costs the client time
TEXT_BYTES = 65_535  # the longest string that Milvus stores
NAMES_MOST = 4_096  # the most elements of an array in Milvus
K_MOST = 16_384  # the most results that Milvus returns for a query
DIM_MOST = 32_768
KEY_CHARS = 32
_UNSPLIT = "-"  # stands for "no split at all"; not a digest


def generation_schema(dim: int) -> CollectionSchema:
    """Makes the schema of a generation with vectors of `dim`; 0: of its words, as sparse vectors."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(ORDINAL, DataType.INT64, is_primary=True)
    if dim:
        schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
    else:
        schema.add_field(VECTOR, DataType.SPARSE_FLOAT_VECTOR)
        schema.add_field(UNIT, DataType.SPARSE_FLOAT_VECTOR)
    schema.add_field(TEXT, DataType.VARCHAR, max_length=TEXT_BYTES)
    sizes = {IDS: ID_BYTES, SPLITS: SPLIT_BYTES, TAGS: TAG_BYTES}
    for name, size in {**sizes, **dict.fromkeys((ID_KEYS, SPLIT_KEYS, TAG_KEYS), KEY_CHARS)}.items():
        schema.add_field(name, DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=NAMES_MOST, max_length=size)
    return schema


def to_row(ordinal: int, record: PremiseRecord, vector: NDArray[np.float32] | dict[int, float]) -> dict[str, Any]:
    """Converts a premise with its vector (dim,) or sparse. Raises InvalidArgument for too many ids or splits."""
    ids = [record.id, *record.aliases]
    for names, what in ((ids, "ids"), (record.splits, "splits")):
        if len(names) > NAMES_MOST:
            raise errors.InvalidArgument.field(
                f"premise {record.id!r}",
                f"has {len(names):,} {what}, a premise in Milvus has at most {NAMES_MOST:,}; leave some out",
            )
    return {
        ORDINAL: ordinal,
        VECTOR: vector,
        TEXT: record.text,
        IDS: ids,
        SPLITS: list(record.splits),
        TAGS: list(record.tags),
        ID_KEYS: [key_of(one) for one in ids],
        SPLIT_KEYS: [key_of(one) for one in record.splits] or [_UNSPLIT],
        TAG_KEYS: [key_of(one) for one in record.tags],
    }


def to_record(row: Mapping[str, Any]) -> PremiseRecord:
    """Converts a row back to a premise; without splits and tags where the query did not ask for them."""
    first, *aliases = row[IDS]
    return PremiseRecord(first, row[TEXT], tuple(aliases), tuple(row.get(SPLITS, ())), tuple(row.get(TAGS, ())))


def with_any_id(ids: Iterable[str]) -> str:
    """Selects the premises with one of the ids or aliases."""
    return _any_of(ID_KEYS, map(key_of, ids))


def with_ordinals(ordinals: Iterable[int]) -> str:
    """Selects premises by ordinal."""
    return f"{ORDINAL} in [{', '.join(map(str, ordinals))}]"


def between(start: int, end: int) -> str:
    """Selects the premises from ordinal `start` up to but not including `end`."""
    return f"{ORDINAL} >= {start} and {ORDINAL} < {end}"


def allowed(scope: Scope, ordinals: Mapping[str, int]) -> str:
    """Selects what a search may return. `ordinals` has those of `only_ids` and `before_id`."""
    wanted, unwanted = sorted({*map(key_of, scope.splits)}), sorted({*map(key_of, scope.exclude_ids)})
    parts = [_any_of(SPLIT_KEYS, [_UNSPLIT, *wanted])] if wanted else []
    parts += [f"not {_any_of(ID_KEYS, unwanted)}"] if unwanted else []
    parts += [with_ordinals(sorted({ordinals[one] for one in scope.only_ids}))] if scope.only_ids else []
    parts += [f"{ORDINAL} < {ordinals[scope.before_id]}"] if scope.before_id else []
    clauses = sorted(map(_fitting, scope.clauses))
    parts += [f"({' or '.join(clauses)})"] if clauses else []
    return " and ".join(parts)


def _fitting(clause: Clause) -> str:
    """Selects the premises that fit a clause of tags."""
    wanted, unwanted = (sorted(map(key_of, names)) for names in clause)
    parts = [_any_of(TAG_KEYS, [one]) for one in wanted]
    return f"({' and '.join(parts + [f'not {_any_of(TAG_KEYS, unwanted)}'] * bool(unwanted))})"


def _any_of(field: str, keys: Iterable[str]) -> str:
    quoted = ", ".join(f'"{key}"' for key in keys)
    return f"array_contains_any({field}, [{quoted}])"


def key_of(name: str) -> str:
    """The digest that stands for a name."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:KEY_CHARS]
