"""`aeenc corpus build`, `add`, `remove`, `explain`, `verify` and `repair`: premises in."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc import Client, values
from aeenc.adapters.facts import IDS, TEXTS, Facts, Format, path_of, read_facts
from aeenc.calls.inputs import begins_again
from aeenc.cli.options import taking
from aeenc.cli.output import Output, Report, fields_table, output_of
from aeenc.cli.targets import client, targets_of
from aeenc.errors import DataLoss, InvalidArgument
from aeenc.evaluation import RatedDataset, Source, load_data
from aeenc.exports import judgements_of
from aeenc.index import BuildStage
from aeenc.trees import Dataset

_ENGINES = "aeenc.build_engines"
LAYOUTS = "Directory in the layout of EntailmentBank, TextGraphs-2021 or BEIR."
PREMISE_FILES = "premises."  # how their names begin in a generation
FileFormat = Annotated[
    Format | None, typer.Option("--format", show_default="by the suffix; of -, txt", help="The file's format.")
]
IdColumn = Annotated[str, typer.Option(show_default=f"the first of {', '.join(IDS)}", help="The column with the ids.")]
TextColumn = Annotated[str, typer.Option(show_default=f"the first of {', '.join(TEXTS)}", help="That with the texts.")]


def premises_of(dataset: Source) -> list[values.Premise]:
    """Converts the candidates of a dataset to premises, in the order of insertion."""
    return [
        values.Premise(id=found.id, text=found.text, aliases=tuple(found.aliases), splits=tuple(found.splits))
        for found in dataset.candidates()
    ]


def build_corpus(
    client: Client,
    name: str,
    source: Source | Iterable[values.Premise],
    report: Report = lambda *_: None,
    *,
    activate: bool = True,
    space_id: str = "",
    fold_same: bool = False,
    truncate: bool = False,
) -> values.Generation:
    """Builds a generation of the corpus `name`. `report(encoded, all, doing)` is called often; `all` is 0 until known.

    With `fold_same`, premises that say the same are one; with `truncate`, those too long for the model are cut.
    A source that can be gone through twice is read to its end before anything is sent, so that a malformed line costs
    nothing.
    """
    premises = premises_of(source) if isinstance(source, Dataset | RatedDataset) else source
    count = sum(1 for _ in premises) if begins_again(premises) else 0

    def progressed(_: int, encoded: int, stage: BuildStage) -> None:
        report(encoded, count, f"indexing {name}" if stage == "indexing" else "")

    built = client.index.build(
        name,
        premises,
        activate=activate,
        space_id=space_id,
        fold_similar=fold_same or None,
        truncate=truncate,
        on_progress=progressed,
    )
    report(count or built.premises, count or built.premises, "")
    return built


def corpus_name(dataset: Source, *, fold_same: bool = False) -> str:
    """Names a corpus `eval-` and 8 hex digits of a hash over the candidates' texts in order; `-folded` if it is so."""
    digest = hashlib.sha256()
    for candidate in dataset.candidates():
        digest.update(candidate.text.encode() + b"\0")
    return f"eval-{digest.hexdigest()[:8]}{'-folded' if fold_same else ''}"


def ensure_corpus(
    client: Client,
    dataset: Source,
    report: Report = lambda *_: None,
    *,
    fold_same: bool = False,
) -> str:
    """Builds the corpus of a dataset's candidates unless it serves in the trainer's space; returns its name.

    With `fold_same`, candidates that say the same are one, and the name ends with `-folded`. Where one with these texts
    serves already, and has them in other splits, the name gets a hash of the splits.
    """
    name, space_id = corpus_name(dataset, fold_same=fold_same), client.trainer.info().default_space_id
    serving = {found.corpus for found in client.index.list_corpora() if found.active.space_id == space_id}
    splits = {candidate.text: sorted(candidate.splits) for candidate in dataset.candidates()}
    if name in serving and not fold_same and not _has_splits(client, name, splits):
        name += f"-{hashlib.sha256(json.dumps(splits).encode()).hexdigest()[:8]}"
    if name not in serving:
        build_corpus(client, name, dataset, report, fold_same=fold_same)
    return name


def _has_splits(client: Client, corpus: str, splits: Mapping[str, Sequence[str]]) -> bool:
    """Tells whether the premises of a corpus that have these texts stand in these splits, and in no others."""
    known = {premise.text: sorted(premise.splits) for premise in client.index.list_premises(corpus)}
    return all(known.get(text, expected) == expected for text, expected in splits.items())


def source_of(
    data: Annotated[Path | None, typer.Option(help=LAYOUTS)] = None,
    facts: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|URL",
            help="One fact a line; or .jsonl, .csv, .tsv, .json, .parquet, a dataset's directory, or -.",
        ),
    ] = None,
    file_format: FileFormat = None,
    id_column: IdColumn = "",
    text_column: TextColumn = "",
) -> Source | Iterable[values.Premise] | None:
    """Opens the source of premises that is given, if any. Raises InvalidArgument for two, or options of another."""
    if facts is None and (file_format or id_column or text_column):
        raise InvalidArgument("--format, --id-column and --text-column go with --facts")
    if facts is None:
        return None if data is None else load_data(data)
    if data is not None:
        raise InvalidArgument("give either --data DIR or --facts FILE")
    return read_facts(path_of(facts), file_format=file_format, id_column=id_column, text_column=text_column)


Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut facts too long for the model, instead of refusing them.")
]


@taking(source=source_of)
def build(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus; created when it does not exist.")],
    source: Source | Iterable[values.Premise] | None = None,
    activate: Annotated[bool, typer.Option(help="Let searches see it once it is finished.")] = True,
    space_id: Annotated[
        str, typer.Option("--space", show_default="the encoder's own", help="The space of its vectors.")
    ] = "",
    fold_same: Annotated[
        bool,
        typer.Option(
            "--fold-same",
            help="Make facts aliases of an earlier one that says the same: they differ in case, articles, punctuation.",
        ),
    ] = False,
    truncate: Truncate = False,
    engine: Annotated[
        str, typer.Option(show_default="one stream", help="ray: by many processes; needs the extra index-ray.")
    ] = "",
    ray_address: Annotated[
        str, typer.Option("--ray", show_default="processes here", help="With --engine ray: the cluster's address.")
    ] = "",
    workers: Annotated[
        int, typer.Option(min=0, show_default="one a core", help="With --engine ray: how many processes here.")
    ] = 0,
    work: Annotated[
        str,
        typer.Option(
            metavar="DIR|URL",
            show_default="beside the artifacts",
            help="With --engine ray: what is finished is kept here; a build of the same input goes on with it.",
        ),
    ] = "",
) -> None:
    """Builds a new generation of a corpus; the one that serves goes on until the new one is complete.

    Says how many facts say the same as an earlier one, and how many were cut.
    """
    if source is None:
        raise InvalidArgument("give either --data DIR or --facts FILE")
    out, started = output_of(context), time.monotonic()
    connected = client(context)
    if engine and fold_same:
        raise InvalidArgument("--engine builds every fact as it is; leave --fold-same or --engine out")
    shared: dict[str, Any] = {"activate": activate, "space_id": space_id, "truncate": truncate}
    if engine:
        shared |= {"address": ray_address, "workers": workers, "work": work, "targets": targets_of(context)}
        built = _build_elsewhere(out, connected, name, source, engine, **shared)
    elif ray_address or workers or work:
        raise InvalidArgument("--ray, --workers and --work go with --engine ray")
    else:
        built = build_shown(out, connected, name, source, fold_same=fold_same, **shared)
    for note in built.notes:
        out.note(note)
    seconds = time.monotonic() - started
    fields = {"corpus": name, "generation": built.id, "premises": built.premises, "active": built.active}
    fields |= {"seconds": round(seconds, 3), "facts_per_s": round(built.premises / seconds, 1)}
    out.result(fields, fields_table(fields), f"search it: aeenc retrieve {name} TEXT")


def _build_elsewhere(
    out: Output, client: Client, name: str, source: object, engine: str, **options: Any
) -> values.Generation:
    """Builds by an engine that another distribution brings under the entry-point group `aeenc.build_engines`."""
    found = {point.name: point for point in entry_points(group=_ENGINES)}
    if engine not in found:
        known = ", ".join(sorted(found)) or "none; pip install ./clients/python '.[index-ray]' (in a checkout)"
        raise InvalidArgument(f"--engine {engine}: no such engine; known: {known}")
    if not isinstance(source, Facts):
        raise InvalidArgument(f"--engine {engine} reads --facts PATH, not --data, standard input or a pipe")
    with out.progress(f"building {name}", "facts") as report:
        build_by: Callable[..., Any] = found[engine].load()
        built = build_by(
            client,
            options.pop("targets"),
            name,
            source,
            **options,
            on_progress=lambda stage, done, total: report(done, total, f"{name}: {stage}"),
        )
    return next(one for one in client.index.list_generations(name) if one.id == built.artifact.id)


def build_shown(
    out: Output, client: Client, name: str, source: Source | Iterable[values.Premise], **options: Any
) -> values.Generation:
    """Builds as `build_corpus` does with its `options`, and shows how far it is."""
    with out.progress(f"building {name}", "facts") as report:
        return build_corpus(client, name, source, report, **options)


def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus; it serves already.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Facts, each as one word.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="PATH|URL", help="A file of facts instead, as `corpus build --facts`.")
    ] = None,
    truncate: Truncate = False,
) -> None:
    """Adds facts to a corpus. Its generation before stays, to be activated again or deleted.

    A fact that is there already changes nothing. Where somebody else changes the corpus at the same time, one of both
    ends with an error (exit code 4) and may be repeated.
    """
    if bool(texts) == (file is not None):
        raise InvalidArgument("give either texts or --file PATH")
    facts = texts or read_facts(path_of(file or ""))
    _change(context, name, lambda connected: connected.index.add(name, facts, truncate=truncate))


def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus.")],
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of premises; `aeenc retrieve` shows them.")],
) -> None:
    """Removes facts from a corpus by their ids. Its generation before stays, to be activated again or deleted."""
    _change(context, name, lambda connected: connected.index.remove(name, ids))


def _change(context: typer.Context, name: str, change: Callable[[Client], values.Generation]) -> None:
    connected = client(context)
    before = {one.corpus: one.active.id for one in connected.index.list_corpora()}.get(name, "")
    now = change(connected)
    fields = {"generation": now.id, "premises": now.premises, "active": True, "before": before}
    output_of(context).result({"corpus": name, **fields})


Generation = Annotated[str, typer.Option("--generation", show_default="the active one", help="The generation.")]


def verify(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus.")],
    generation: Generation = "",
) -> None:
    """Checks every file of a generation, and that its vectors find themselves. Exits with 5 for a damaged one."""
    found = client(context).index.verify(name, generation)
    sound = {"generation": found.id, "premises": found.premises, "active": found.active, "sound": True}
    output_of(context).result({"corpus": name, **sound})


@taking(source=source_of)
def repair(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus.")],
    generation: Generation = "",
    source: Source | Iterable[values.Premise] | None = None,
    space_id: Annotated[
        str, typer.Option("--space", show_default="the generation's own", help="The space of its vectors.")
    ] = "",
) -> None:
    """Builds a damaged generation again, and activates it where the damaged one was active.

    The premises are those of --data or --facts, else those of the generation itself, as long as they are sound. A sound
    generation is left alone. --space is needed where nobody can read in which space it was.
    """
    out = output_of(context)
    connected = client(context)
    try:
        sound = connected.index.verify(name, generation)
    except DataLoss as damage:
        out.note(f"damaged: {damage.message}")
        out.result(_repair(out, connected, name, generation, damage, source, space_id))
    else:
        out.result({"corpus": name, "damaged": "", "generation": sound.id, "active": sound.active})


def _repair(
    out: Output,
    client: Client,
    name: str,
    generation: str,
    damage: DataLoss,
    source: Source | Iterable[values.Premise] | None,
    space_id: str,
) -> dict[str, Any]:
    known = damage.metadata
    damaged = known.get("generation", generation)
    space_id = space_id or known.get("space_id", "")
    if not space_id:
        remedy = "name it by --space; `aeenc --json status` shows those of the encoder"
        raise DataLoss(f"{damage.message}; its space cannot be read: {remedy}")
    if source is None:
        source = _premises_of_damaged(client, name, damaged, damage)
    built = build_shown(out, client, name, source, activate=False, space_id=space_id, truncate=True)  # as it may be
    active = not generation or known.get("active") == "true"  # without a name, the active one was checked
    if active:
        # what serves may be another one, or none: the active one may not have opened
        client.index.activate(name, built.id, expected=known.get("generation"))
    sound = client.index.verify(name, built.id)
    return {"corpus": name, "damaged": damaged, "generation": sound.id, "active": active, "premises": sound.premises}


def _premises_of_damaged(client: Client, name: str, generation: str, damage: DataLoss) -> list[values.Premise]:
    """Reads the premises of a generation of which other files are damaged. Raises DataLoss where that is not so."""
    damaged = damage.metadata.get("damaged", PREMISE_FILES)
    if not any(one.startswith(PREMISE_FILES) for one in damaged.split(",")):
        try:
            return list(client.index.list_premises(name, generation=generation))
        except DataLoss:  # it does not open any more
            pass
    raise DataLoss(f"{damage.message}; its premises cannot be read: give them by --data DIR or --facts FILE")


def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The corpus.")],
    runs: Annotated[list[str], typer.Option("--run", help="A sampling run; may be repeated.")],
    replace: Annotated[bool, typer.Option(help="Forget what was put before.")] = False,
) -> None:
    """Tells the index what runs found to explain what, for `aeenc retrieve --prior`.

    What was amended or is in dispute between the runs is left out.
    """
    connected = client(context)
    by_query, _ = judgements_of(pair for run in runs for pair in connected.sampler.list_pairs(run))
    found = {query: list(judged.positives.values()) for query, judged in by_query.items() if judged.positives}
    total = connected.index.put_explanations(name, found.items(), replace=replace)
    output_of(context).result({"corpus": name, "put": len(found), "known": total})
