"""`aeenc export vectors`: the premises of a generation with their vectors; and the option that names a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from aeenc.adapters.facts import BATCH_ROWS, pyarrow
from aeenc.cli.options import taking
from aeenc.cli.output import output_of
from aeenc.errors import InvalidArgument
from aeenc.files.whole import whole_folder
from aeenc.transport.targets import home as default_home
from services.corpus.active import named_or_active
from services.corpus.generation import PREMISES, VECTORS, Generation, PremiseRecord, open_generation
from services.store.artifacts import ArtifactStore
from services.store.objects import open_store


def store_of(
    home: Annotated[
        Path | None, typer.Option(show_default="AEENC_HOME or .aeenc", help="The home of `aeenc up`.")
    ] = None,
    artifacts: Annotated[
        Path | None, typer.Option(help="The ARTIFACTS_DIR of other services, instead of a home.")
    ] = None,
    artifacts_url: Annotated[
        str, typer.Option(help="The object store behind --artifacts, which is then a cache.")
    ] = "",
) -> ArtifactStore:
    """Opens the store that the options name. Raises InvalidArgument for an object store without a cache."""
    if artifacts_url and artifacts is None:
        raise InvalidArgument("--artifacts-url needs --artifacts, the directory that is its cache")
    return open_store(artifacts or (home or default_home()) / "artifacts", artifacts_url)


@taking(store=store_of)
def export_vectors(
    context: typer.Context,
    corpus: Annotated[str, typer.Argument(help="The corpus.")],
    to: Annotated[Path, typer.Option(help="The folder; it must not exist.")],
    store: ArtifactStore,
    form: Annotated[
        Literal["npy", "parquet"], typer.Option("--as", help="How they are written; parquet needs pyarrow.")
    ] = "npy",
    generation: Annotated[str, typer.Option(show_default="the active one", help="The generation.")] = "",
) -> None:
    """Writes the premises of a corpus with their vectors, for a vector database.

    As npy: vectors.npy, float32, one row a premise, and premises.jsonl, whose
    lines are the rows' ids and texts. As parquet: premises.parquet with the
    columns id, text and vector. Beside them about.json, which names space and
    encoder.
    """
    found = open_generation(store, corpus, named_or_active(store, corpus, generation), verify="full")
    about = {
        "corpus": corpus,
        "generation": found.id,
        "space_id": found.space_id,
        "premise_version": found.premise_version,
        "premises": len(found.premises),
        "dim": found.dim,
    }
    with whole_folder(to) as folder:
        if form == "npy":
            with (folder / VECTORS).open("wb") as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": found.vectors.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for _, vectors in _parts(found):
                    file.write(vectors.tobytes())
            with (folder / PREMISES).open("w", encoding="utf-8") as lines:
                for one in found.premises:
                    lines.write(json.dumps({"id": one.id, "text": one.text}, ensure_ascii=False) + "\n")
        else:
            _write_parquet(folder / "premises.parquet", found)
        (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    output_of(context).result({"to": str(to), **about})


def _parts(generation: Generation) -> Iterator[tuple[Sequence[PremiseRecord], NDArray[np.float32]]]:
    """Yields the premises and their vectors (n, dim), part by part: memory never holds all of them in float32."""
    for start in range(0, len(generation.premises), BATCH_ROWS):
        part = slice(start, start + BATCH_ROWS)
        yield generation.premises[part], generation.vectors[part].astype("<f4")


def _write_parquet(path: Path, generation: Generation) -> None:
    pa = pyarrow(path)
    fields = [("id", pa.string()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), generation.dim))]
    with pa.parquet.ParquetWriter(path, pa.schema(fields)) as writer:
        for premises, vectors in _parts(generation):
            rows = pa.FixedSizeListArray.from_arrays(vectors.ravel(), generation.dim)
            columns = [[one.id for one in premises], [one.text for one in premises], rows]
            writer.write_table(pa.table(columns, schema=writer.schema))


def register(app: typer.Typer) -> None:
    """Adds the command."""
    for group in app.registered_groups:
        if group.name == "export" and group.typer_instance is not None:
            group.typer_instance.command("vectors")(export_vectors)
