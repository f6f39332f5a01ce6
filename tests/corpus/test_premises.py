"""Premises on disk: found by ordinal, id and text through tables, whatever the hashes; damage is refused by name."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc import errors
from services.corpus import generation as module
from services.corpus.generation import GROUPS, PREMISES, STARTS, TEXTS, PremiseRecord, Premises, Tables, write_premises
from services.store.artifacts import Artifact, ArtifactStore

RECORDS = [
    PremiseRecord("p1", "the sun is a kind of star"),
    PremiseRecord("p2", "ice is água — solid\nwater", aliases=("p7", "p8"), splits=("dev", "train")),
    PremiseRecord("p3", "a magnet attracts iron", splits=("test",)),
    PremiseRecord("p4", "rain falls", splits=("facts",)),
    PremiseRecord("p5", "snow falls", splits=("test",)),
]


def write(store: ArtifactStore, records: list[PremiseRecord] = RECORDS) -> Artifact:
    with store.writer("generation", "generations/science") as writer:
        write_premises(writer.path, records)
        return writer.commit({})


@pytest.fixture(params=["on-disk", "in-memory"])
def premises(request: pytest.FixtureRequest, artifact_store: ArtifactStore) -> Premises:
    return Premises.open(write(artifact_store)) if request.param == "on-disk" else Premises.of(RECORDS)


def test_premises_are_a_sequence_in_the_order_of_insertion(premises: Premises) -> None:
    assert len(premises) == 5
    assert list(premises) == RECORDS
    assert [premises[n] for n in range(5)] == RECORDS
    assert premises[-1] == RECORDS[-1]
    assert premises[1:4] == RECORDS[1:4]
    assert premises[3:100] == RECORDS[3:]
    for outside in (5, -6):
        with pytest.raises(IndexError):
            premises[outside]


def test_ids_are_read_without_the_rest_of_their_lines(
    artifact_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["p1", "", "é 1", 'with "quotes"', "back\\slash", "new\nline", '", "text": "', "p7"]
    premises = Premises.open(
        write(artifact_store, [PremiseRecord(name, f"text of {n}") for n, name in enumerate(names)])
    )
    assert premises.ids_of(range(len(names))) == names
    assert premises.ids_of([7, 0, 7]) == ["p7", "p1", "p7"]

    def refuse(_line: bytes) -> PremiseRecord:
        raise AssertionError("a whole line was decoded")

    again = Premises.open(write(artifact_store))
    monkeypatch.setattr(PremiseRecord, "of_line", refuse)
    assert again.ids_of(range(5)) == [record.id for record in RECORDS]


def test_ids_aliases_and_texts_find_their_premise_and_nothing_else(premises: Premises) -> None:
    assert dict(premises.ordinal_by_id) == {"p1": 0, "p2": 1, "p7": 1, "p8": 1, "p3": 2, "p4": 3, "p5": 4}
    assert dict(premises.ordinal_by_text) == {record.text: n for n, record in enumerate(RECORDS)}
    for name in ("", "p9", "P1", RECORDS[0].text):
        assert premises.ordinal_by_id.get(name) is None
    assert "rain  falls" not in premises.ordinal_by_text


def test_equal_hashes_are_told_apart_by_the_premises(
    artifact_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "hash64", lambda name: len(name) % 2)
    premises = Premises.open(write(artifact_store))
    assert dict(premises.ordinal_by_id) == {"p1": 0, "p2": 1, "p7": 1, "p8": 1, "p3": 2, "p4": 3, "p5": 4}
    assert "p9" not in premises.ordinal_by_id
    assert [premises.ordinal_by_text[record.text] for record in RECORDS] == list(range(5))


def test_a_mask_has_premises_with_a_wanted_split_and_those_without_any(premises: Premises) -> None:
    assert premises.passing(frozenset({"train"})).tolist() == [True, True, False, False, False]
    assert premises.passing(frozenset({"facts", "test"})).tolist() == [True, False, True, True, True]
    assert premises.passing(frozenset({"nonsense"})).tolist() == [True, False, False, False, False]
    assert not premises.passing(frozenset({"train"})).flags.writeable, "callers share it"


def test_opening_reads_no_line(artifact_store: ArtifactStore) -> None:
    written = write(artifact_store)
    lines = written.file(PREMISES).read_bytes()
    written.file(PREMISES).write_bytes(b"x" * len(lines))
    premises = Premises.open(written)
    with pytest.raises(errors.DataLoss, match=r"premises.jsonl cannot be read at line 2"):
        premises[1]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (STARTS, lambda starts: starts[[0, 2, 1, *range(3, len(starts))]]),
        (TEXTS, lambda texts: texts[:, ::-1]),
        (TEXTS, lambda texts: np.stack([texts[0], np.append(5, texts[1, 1:]).astype(texts.dtype)])),
        (GROUPS, lambda groups: np.append(99, groups[1:]).astype(groups.dtype)),
        (GROUPS, lambda groups: groups[:-1]),
    ],
    ids=["starts", "order", "ordinals", "groups", "rows"],
)
def test_tables_that_do_not_fit_are_data_loss(
    artifact_store: ArtifactStore, name: str, damage: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    written = write(artifact_store)
    np.save(written.path / name, damage(np.load(written.path / name)))
    with pytest.raises(errors.DataLoss, match="do not fit together; build the generation again"):
        Premises.open(written)


def test_the_tables_of_ten_thousand_premises_are_small_and_find_each(artifact_store: ArtifactStore) -> None:
    records = [PremiseRecord(f"id-{n}", f"text {n}", splits=("a", "b")[: n % 3]) for n in range(10_000)]
    written = write(artifact_store, records)
    tables = sum(entry.size_bytes for name, entry in written.files.items() if name != PREMISES)
    assert tables < 48 * len(records)
    premises = Premises.open(written)
    assert [premises.ordinal_by_id[f"id-{n}"] for n in range(0, 10_000, 97)] == list(range(0, 10_000, 97))
    assert [premises.ordinal_by_text[f"text {n}"] for n in range(0, 10_000, 89)] == list(range(0, 10_000, 89))
    assert json.loads(written.file("premises.groups.json").read_bytes()) == [[[], []], [["a"], []], [["a", "b"], []]]


def test_no_premises_have_empty_tables() -> None:
    assert Tables.of([]).fit(0)
    assert len(Premises.of([])) == 0


def test_long_premises_are_not_kept_in_memory() -> None:
    premises = Premises.of(PremiseRecord(f"p{n}", f"{n} " + "x" * 16_000) for n in range(1000))
    tracemalloc.start()
    assert sum(len(premises[n].text) for n in range(1000)) > 16_000_000
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2_000_000
