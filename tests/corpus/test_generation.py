"""A corpus generation on disk: the trainer reads what the index writes; parts that do not fit are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from aeenc import errors
from aeenc.cli.main import app
from services.corpus import commands
from services.corpus.active import read_active, write_active
from services.corpus.generation import (
    KIND,
    STARTS,
    VECTORS,
    PremiseRecord,
    folder_of,
    open_generation,
    write_premises,
)
from services.store.artifacts import Artifact, ArtifactStore

RECORDS = [
    PremiseRecord("p1", "the sun is a kind of star"),
    PremiseRecord("p2", "ice is água — solid\nwater", aliases=("p7", "p8"), splits=("train", "dev")),
    PremiseRecord("p3", "a magnet attracts iron", splits=("test",)),
]


def write(
    store: ArtifactStore,
    vectors: NDArray[np.generic],
    *,
    storage: str = "float32",
    premises: int = 3,
    meta: dict[str, object] | None = None,
    without: str = "",
) -> Artifact:
    stamp = {"corpus": "science", "space_id": "s1", "premise_version": "q1", "engine": "flat"}
    with store.writer(KIND, folder_of("science")) as writer:
        write_premises(writer.path, RECORDS)
        np.save(writer.path / VECTORS, vectors)
        if without:
            (writer.path / without).unlink()
        return writer.commit(meta or {**stamp, "dim": 4, "premises": premises, "storage": storage}, id_prefix="g")


def matrix(rows: int = 3, dim: int = 4) -> NDArray[np.float32]:
    return np.arange(rows * dim, dtype=np.float32).reshape(rows, dim)


def test_a_generation_is_read_as_it_was_written(artifact_store: ArtifactStore) -> None:
    written = write(artifact_store, matrix())
    generation = open_generation(artifact_store, "science", written.id, verify="full")
    assert list(generation.premises) == RECORDS
    assert np.array_equal(generation.vectors, matrix())
    assert not generation.vectors.flags.writeable
    assert (generation.id, generation.corpus, generation.dim) == (written.id, "science", 4)
    assert (generation.space_id, generation.premise_version) == ("s1", "q1")
    assert generation.premises.ordinal_by_id == {"p1": 0, "p2": 1, "p7": 1, "p8": 1, "p3": 2}
    assert generation.premises.ordinal_by_text["ice is água — solid\nwater"] == 1


@pytest.mark.parametrize(
    ("vectors", "told", "said"),
    [
        *((one, {}, r"its manifest says \(3, 4\); build it again") for one in (matrix(rows=2), matrix(dim=5))),
        *((one, {}, r"its manifest says \(3, 4\)") for one in (matrix().reshape(-1), matrix().astype(np.float64))),
        (matrix().astype(">f4"), {}, r"its manifest says \(3, 4\)"),
        (matrix(), {"storage": "float16"}, "build it again"),
        (matrix().astype(np.float16), {}, "build it again"),
        (matrix(), {"storage": "float8"}, "build the generation again"),
        (matrix(rows=4), {"premises": 4}, "holds 3 premises"),
        (np.array([{"a": 1}], dtype=object), {}, "build the generation again"),
        (matrix(), {"without": STARTS}, STARTS),
        (matrix(), {"meta": {"dim": 4}}, "build the generation again"),
    ],
    ids=[
        *("a row too few", "another dim", "one dimension", "float64", "big-endian", "no float16", "no float32"),
        *("unknown storage", "a premise too few", "a pickle", "no tables", "no generation"),
    ],
)
def test_what_does_not_fit_its_manifest_is_data_loss(
    artifact_store: ArtifactStore, vectors: NDArray[np.generic], told: dict[str, Any], said: str
) -> None:
    written = write(artifact_store, vectors, **told)
    with pytest.raises(errors.DataLoss, match=said):
        open_generation(artifact_store, "science", written.id)


def test_a_generation_in_float16_is_read_as_such_and_given_in_float32(artifact_store: ArtifactStore) -> None:
    written = write(artifact_store, matrix().astype(np.float16), storage="float16")
    generation = open_generation(artifact_store, "science", written.id, verify="full")
    assert generation.vectors.dtype == np.float16
    assert generation.float32().dtype == np.float32
    assert np.array_equal(generation.float32(), matrix())
    single = open_generation(artifact_store, "science", write(artifact_store, matrix()).id)
    assert np.shares_memory(single.float32(), single.vectors), "no copy of what is in float32 already"


def test_a_generation_in_float16_is_exported_part_by_part_in_float32(
    artifact_store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "BATCH_ROWS", 2)
    written = write(artifact_store, matrix().astype(np.float16), storage="float16")
    assert [len(part) for _, part in commands._parts(open_generation(artifact_store, "science", written.id))] == [2, 1]
    words = ["export", "vectors", "science", "--artifacts", str(artifact_store.root), "--generation", written.id]
    for form in ("npy", "parquet"):
        ended = CliRunner().invoke(app, [*words, "--to", str(tmp_path / form), "--as", form])
        assert ended.exit_code == 0, ended.output
    np.save(tmp_path / "whole.npy", matrix())
    assert (tmp_path / "npy" / VECTORS).read_bytes() == (tmp_path / "whole.npy").read_bytes()
    rows = pq.read_table(tmp_path / "parquet" / "premises.parquet").to_pylist()
    assert [row["vector"] for row in rows] == matrix().tolist()


def test_an_unknown_generation_is_not_found(artifact_store: ArtifactStore) -> None:
    with pytest.raises(errors.NotFound, match="generations/science has no 'g0'"):
        open_generation(artifact_store, "science", "g0")


@pytest.mark.parametrize("corpus", ["", ".", "..", "../checkpoints", "a/b", ".hidden", "a" * 65, "é", "a\n", "a b"])
def test_a_corpus_name_never_leads_out_of_its_folder(artifact_store: ArtifactStore, corpus: str) -> None:
    for call in (
        lambda: open_generation(artifact_store, corpus, "g0"),
        lambda: read_active(artifact_store, corpus),
        lambda: write_active(artifact_store, corpus, "g0"),
    ):
        with pytest.raises(errors.InvalidArgument, match="is not a corpus name") as caught:
            call()
        assert caught.value.violations[0].field == "corpus"
