"""The resources of a corpus of 16 k to 1 B premises: measures constants, prints a table. `make bench NAME=sizing`.

The vectors are clusters with noise from a seed, since graphs behave unlike themselves on plain random ones. Nothing
larger than 60,000 premises is built here; what is beyond is computed (sizing_model.py).
What other benchmarks measure stands in MEASURED, with their names.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.rows import ROOT, Rows
from benchmarks.index.sizing_model import DIM, Constants, table
from services.corpus.generation import KIND, PremiseRecord, folder_of, generation_meta, open_generation, write_premises
from services.index.building.folding import Folding
from services.index.catalogue.served import ServedGeneration
from services.index.dense.exact import FlatIndex
from services.kit.limits import Limits
from services.store.artifacts import ArtifactStore

ROWS = 60_000
QUERIES = 512
CLUSTERS = 2_000
CORES = 2  # of the machine that MEASURED is from
# docs/performance.md has these.
MEASURED: Mapping[str, Any] = {
    "encoded_per_s": 648 / CORES,  # make bench NAME=encoder, served, float32
    "flat_calls_per_s": 2_263,  # make bench NAME=index ARGS='--only search'
    "flat_rows": 15_243,
    "ivf_bytes": 1.28 * DIM * 4,  # make bench NAME=index-large
    # make bench NAME=scale ARGS='--only large', with --rows 1000000 and without, in float16
    "ivf_rows_built_per_s": {10**6: 10**6 / (2.4 * 60 * CORES), 10**7: 10**7 / (40.6 * 60 * CORES)},
    "ivf_calls_per_s": {10**6: 1_004, 10**7: 708},
    "ivf_disk_bytes": DIM * 4 + DIM / 8 + 8,  # a vector, its code of 4 bits for four dimensions, and its ordinal
}


def main() -> None:
    """Measures, prints the constants and the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    faiss.omp_set_num_threads(1)
    rows = Rows("sizing")
    vectors, queries = clustered(ROWS, seed=11), clustered(QUERIES, seed=12)
    stored = stored_bytes()
    constants = Constants(
        stored_bytes=stored,
        served_bytes=served_bytes(vectors),
        folding_bytes=folding_bytes(),
        upserted_per_s=upserted_per_s(vectors),
        **flat(vectors, queries),
        **graph(vectors, queries),
        **MEASURED,
    )
    for name, value in asdict(constants).items():
        rows.note(name, value, "")
    print(f"\n{table(constants)}")
    rows.finish()


def clustered(count: int, *, seed: int) -> NDArray[np.float32]:
    """Unit vectors (count, DIM) around the same centres for every seed."""
    centres = np.random.default_rng(1).normal(size=(CLUSTERS, DIM))
    rng = np.random.default_rng(seed)
    matrix = centres[rng.integers(0, CLUSTERS, count)] + 0.8 * rng.normal(size=(count, DIM))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def flat(vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> dict[str, Any]:
    """The flat index of the service: its bytes a premise, and the rows that one core scans in a second."""
    index = FlatIndex(vectors)
    seconds = timed(lambda: [index.nearest(queries[n : n + 64], 10) for n in range(0, len(queries), 64)])
    return {"flat_bytes": float(DIM * 4), "flat_rows_scanned_per_s": len(queries) * len(vectors) / seconds}


def graph(vectors: NDArray[np.float32], queries: NDArray[np.float32]) -> dict[str, Any]:
    """An HNSW graph of 32 links with vectors, as Milvus keeps one: its bytes, its building, its search at ef 256."""
    index = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 200
    built_s = timed(lambda: index.add(vectors))
    size_bytes = len(faiss.serialize_index(index))
    index.hnsw.efSearch = 256
    searched_s = timed(lambda: index.search(queries, 10))
    _, found = index.search(queries, 10)
    exact = FlatIndex(vectors).nearest(queries, 10)
    hits = sum(len(np.intersect1d(mine, one.ordinals)) for mine, one in zip(found, exact, strict=True))
    print(f"recall@10 of the graph: {hits / found.size:.4f}")
    return {
        "graph_bytes": size_bytes / len(vectors),
        "graph_rows_built_per_s": len(vectors) / built_s,
        "graph_queries_per_s": len(queries) / searched_s,
        "graph_rows": len(vectors),
    }


def stored_bytes() -> float:
    """The line of a premise, by the sample corpus."""
    path = ROOT / "data" / "sample" / "supporting_data" / "worldtree_corpus_sentences_extended.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    return float(np.mean([len(PremiseRecord(one, str(text)).to_line().encode()) for one, text in facts.items()]))


def premises(count: int) -> list[PremiseRecord]:
    """Distinct premises of about the length of a fact."""
    return [PremiseRecord(f"f{n}", f"a magnet number {n} attracts an iron nail over there") for n in range(count)]


def folding_bytes() -> float:
    """Bytes that a build keeps of a premise until its commit."""
    folding = Folding(Limits())
    before = resident_bytes()
    for start in range(0, ROWS, 1000):
        folding.add(
            PremiseRecord(f"f{n}", f"a magnet number {n} attracts an iron nail over there", (), ("facts",))
            for n in range(start, start + 1000)
        )
    grown = resident_bytes() - before
    assert folding.received == ROWS
    return grown / ROWS


def served_bytes(vectors: NDArray[np.float32]) -> float:
    """Bytes that an index process on files keeps of a premise beside its vector."""
    with tempfile.TemporaryDirectory() as directory:
        store = ArtifactStore(Path(directory))
        with store.writer(KIND, folder_of("sizing")) as writer:
            write_premises(writer.path, premises(ROWS))
            np.save(writer.path / "vectors.npy", vectors, allow_pickle=False)
            meta = generation_meta(corpus="sizing", space_id="s", premise_version="q", dim=DIM, premises=ROWS)
            artifact = writer.commit(meta, id_prefix="g")
        before = resident_bytes()
        served = ServedGeneration.of(open_generation(store, "sizing", artifact.id))
        grown = resident_bytes() - before
        mapped = vectors.nbytes  # read once for the norms, so its pages count as resident
        assert served.rows == ROWS
    return max(grown - mapped, 0) / ROWS


def upserted_per_s(vectors: NDArray[np.float32]) -> float:
    """Premises a second that one core turns into the rows of a request to Milvus, without Milvus."""
    from pymilvus.client.prepare import Prepare

    from services.index.milvus.collection import row_of, schema_of

    fields = schema_of(DIM).to_dict()["fields"]
    some = premises(4096)

    def send() -> None:
        for start in range(0, len(some), 256):
            part = some[start : start + 256]
            rows = [row_of(start + n, one, vectors[start + n]) for n, one in enumerate(part)]
            Prepare.row_upsert_param("sizing", rows, "", fields_info=fields).SerializeToString()

    return len(some) / timed(send)


def timed(work: Callable[[], object]) -> float:
    """Seconds of processor time that some work takes; the core may be shared."""
    started = time.process_time()
    work()
    return time.process_time() - started


def resident_bytes() -> int:
    """The process's resident memory now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
