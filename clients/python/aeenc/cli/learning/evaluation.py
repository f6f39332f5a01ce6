"""`aeenc evaluate`: quality on a split's gold queries.

The directory is read here; the services see texts only. Without a corpus given, the candidates of the directory become
one, named after their content, which is deleted in the end, or kept for the next evaluation on the same data.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from aeenc import Client, Hit, Retrieval, values
from aeenc.cli.corpus import LAYOUTS, build_corpus, corpus_name, ensure_corpus
from aeenc.cli.learning.jobs import TRAINING_SPLIT
from aeenc.cli.learning.reports import report_dict, report_tables, strata_dict
from aeenc.cli.learning.retrieval import Label, check_model, retrieval_of
from aeenc.cli.options import taking
from aeenc.cli.output import Output, Report, comparison_dict, outcome_words, output_of
from aeenc.cli.targets import client
from aeenc.errors import Aborted, AeencError, FailedPrecondition, InvalidArgument, PermissionDenied
from aeenc.evaluation import (
    UNRANKED,
    Gold,
    RatedDataset,
    Source,
    Strata,
    accessible_folded,
    accessible_of,
    average_precision,
    by_depth,
    by_overlap,
    by_split,
    difference_of,
    gold_folded,
    gold_of,
    grades_of,
    load_data,
    metrics_by,
    strict_gold,
    write_qrels,
    write_run,
)
from aeenc.evaluation.strata import StrataName
from aeenc.trees import EVERYTHING, Accessible, Dataset

TIMEOUT_S = 6 * 3600.0  # a large cross-encoder on a CPU is slow
RANKED_PAIRS = 100_000  # whose ranks one answer holds, for strata
PART = 64  # texts whose rankings are held at a time


def generation_for(
    client: Client,
    corpus: str,
    version: str,
    dataset: Source | None,
    report: Report = lambda *_: None,
    *,
    fold_same: bool = False,
) -> str:
    """Finds the generation of a corpus in a version's space, whose vectors the version's premise encoder made.

    Builds a missing one from `dataset` without activating it; raises FailedPrecondition without a dataset.
    """
    space_id = client.trainer.get_checkpoint(version).space_id
    active = {found.corpus: found.active for found in client.index.list_corpora()}
    if corpus in active and active[corpus].space_id == space_id:
        return str(active[corpus].id)
    if corpus in active:
        known = [found.id for found in client.index.list_generations(corpus) if found.space_id == space_id]
        if known:
            return str(known[0])
    if dataset is None:
        raise FailedPrecondition(
            f"corpus {corpus!r} has no generation in space {space_id} of version {version}; build one with "
            f"`aeenc corpus build --space {space_id} --no-activate`, or leave --corpus out"
        )
    built = build_corpus(client, corpus, dataset, report, activate=False, space_id=space_id, fold_same=fold_same)
    return built.id


@contextmanager
def candidates_of(
    out: Output,
    client: Client,
    dataset: Source,
    version: str | None,
    *,
    keep: bool,
    explain: bool,
    fold_same: bool = False,
) -> Iterator[tuple[str, str]]:
    """Lends the corpus of a dataset's candidates, and the generation in the space of a version ("": the active one).

    With `explain`, the explanations of split train are stored for the prior. What had to be built for it is deleted in
    the end, unless it is to be kept or another evaluation uses it.
    """
    corpus, generation, is_built = corpus_name(dataset, fold_same=fold_same), "", False
    before = {one.corpus for one in client.index.list_corpora()}
    with out.progress("candidates", "facts") as report:

        def progressed(*now: Any) -> None:
            nonlocal is_built
            is_built = True
            report(*now)

        if version is not None:
            generation = generation_for(client, corpus, version, dataset, progressed, fold_same=fold_same)
        else:
            corpus = ensure_corpus(client, dataset, progressed, fold_same=fold_same)
    active = {one.corpus: one.active.id for one in client.index.list_corpora()}
    held, holder = generation or active.get(corpus, ""), f"evaluate-{uuid.uuid4().hex[:12]}"
    if not held:  # another evaluation on these data has built it, and ended
        raise Aborted(f"corpus {corpus!r} was deleted meanwhile; evaluate again")
    with suppress(PermissionDenied):  # without the admin's credential nothing is built, either
        client.index.hold(corpus, held, holder)
    try:
        if explain:
            explain_training(client, corpus, dataset)
        yield corpus, generation
    finally:
        with suppress(AeencError):  # the evaluation counts; somebody else may hold or have deleted it
            client.index.release(corpus, held, holder)
            if is_built and not keep and corpus in before:
                client.index.delete(corpus, held)
            elif is_built and not keep:
                client.index.delete_corpus(corpus)


def explain_training(client: Client, corpus: str, dataset: Source) -> None:
    """Stores the explanations of split train in the index, for the prior to learn from."""
    ids = {candidate.text: candidate.id for candidate in dataset.candidates()}
    queries = gold_of(dataset, TRAINING_SPLIT)
    gold = [(text, [ids[one] for one, grade in grades_of(rated).items() if grade]) for text, rated in queries]
    client.index.put_explanations(corpus, gold, replace=True)


def _check_explained(data: Path, dataset: Source) -> None:
    """Raises InvalidArgument for data without explanations that a prior learns from."""
    if TRAINING_SPLIT not in dataset.splits:
        raise InvalidArgument(
            f"--prior learns from the explanations of split {TRAINING_SPLIT!r}, which {data} does not have (it has "
            f"{', '.join(dataset.splits)}); add that split, name a corpus that has explanations by --corpus, or leave "
            "--prior out"
        )


def training_of(dataset: Source, split: str) -> list[Gold]:
    """Lists the gold queries seen in training; none when the directory has no others than `split`."""
    return gold_of(dataset, TRAINING_SPLIT) if TRAINING_SPLIT in dataset.splits and split != TRAINING_SPLIT else []


@taking(retrieval=retrieval_of)
def evaluate(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help=LAYOUTS)],
    split: Annotated[str, typer.Option(help="The split whose queries are asked.")] = "dev",
    corpus: Annotated[
        str, typer.Option(show_default="one built from --data, or found built", help="The corpus of candidates.")
    ] = "",
    label: Label = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="Query encoder by version; a label must name it. Against premises of its own space, which are encoded "
            "where that has not been done."
        ),
    ] = None,
    retrieval: Retrieval | None = None,
    conditioned: Annotated[
        bool, typer.Option(help="Tell one gold premise of each query, look for the others.")
    ] = False,
    protocol: Annotated[Literal["both", "strict"], typer.Option(help="`strict` alone takes half the time.")] = "both",
    trees: Annotated[bool, typer.Option(help="Also measure whole trees.")] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the corpus that is built from --data, for the next evaluation.")
    ] = False,
    run: Annotated[Path | None, typer.Option(help="Write the strict rankings as a TREC run.")] = None,
    qrels: Annotated[Path | None, typer.Option(help="Write the gold premises as TREC qrels.")] = None,
    against: Annotated[
        str, typer.Option(metavar="LABEL", help="Compare with this label's encoder, such as `previous`.")
    ] = "",
    by: Annotated[
        list[StrataName] | None,
        typer.Option(help="Also by the depth of queries, or the split of premises, in fixed bands; may be repeated."),
    ] = None,
    fold_same: Annotated[
        bool,
        typer.Option("--fold-same", help="Beside each figure, that with premises that say the same made one."),
    ] = False,
    whole: Annotated[bool, typer.Option("--all", help="Show all metrics, parts and whole trees.")] = False,
) -> None:
    """Measures how well gold premises of a split are found, by an encoder or in a mode of Retrieve.

    Without --mode and the other options of Retrieve, by the encoder's cosines with all premises. With --json, all
    metrics are there in any case. Quality by the words that premise and query share is told, except with --conditioned
    or for more than 100,000 gold pairs. Where --data says which premises are accessible to a query, no other is ranked
    for it.
    """
    check_model(label, version)
    if conditioned and run is not None:
        raise InvalidArgument("--run has no conditioned form; leave --conditioned or --run out")
    if fold_same and corpus:
        raise InvalidArgument("--fold-same builds a corpus of its own from --data; leave --corpus or --fold-same out")
    dataset = load_data(data)
    queries = gold_of(dataset, split)
    asked = {text for text, _ in queries}
    accessible = {text: one for text, one in accessible_of(dataset, split).items() if text in asked}
    strata = strata_of(by or (), dataset, split)
    prior = retrieval.prior if retrieval else 0.0
    if prior and not corpus:
        _check_explained(data, dataset)
    out = output_of(context)
    connected = client(context)
    lent = partial(candidates_of, out, connected, dataset, version, keep=keep, explain=bool(prior))
    if not corpus:
        corpus, generation = context.with_resource(lent())
    else:
        generation = generation_for(connected, corpus, version, None) if version is not None else ""
    evaluated = partial(
        connected.trainer.evaluate,
        queries=queries,
        retrieval=retrieval,
        accessible=accessible,
        conditioned=conditioned,
        timeout_s=TIMEOUT_S,
    )
    whole_report: dict[str, Any] = {
        "label": label,
        "version": version,
        "training": training_of(dataset, split),
        "trees": dataset.trees(split) if trees and not conditioned and isinstance(dataset, Dataset) else (),
        "strict_only": protocol == "strict",
    }
    pairs = sum(sum(map(bool, gold.values())) for _, gold in strict_gold(queries))
    # first: a label that is misspelt costs no time
    other = evaluated(corpus, label=against, ranks=True, strict_only=True) if against else None
    answer = evaluated(corpus, generation=generation, ranks=bool(against) or pairs <= RANKED_PAIRS, **whole_report)
    measured = report_dict(answer)
    if not conditioned:
        measured |= _strata_told(answer, queries, strata)
    if fold_same:
        place = context.with_resource(lent(fold_same=True))
        ranked = {} if conditioned or pairs > RANKED_PAIRS else strata
        evaluated_in = partial(evaluated, **whole_report)
        measured["folded"] = _folded(connected, place, dataset, accessible, queries, ranked, evaluated_in)
    if other is not None:
        measured["against"] = comparison_dict(_compared(answer, other))
    tables = report_tables(measured, whole=whole or "graded" in measured)
    result = {"corpus": corpus, "split": split, **measured}
    out.result(result, *tables, *_against(measured), _source(split, measured))  # first: a file may fail
    names = {text: name for name, text in dataset.hypotheses(split)} if isinstance(dataset, RatedDataset) else None
    if run is not None:
        pinned = {"version": measured["model_version"] or None, "generation": measured["generation"]}
        texts = [text for text, _ in strict_gold(queries)]
        with out.progress("run", "queries") as report:
            found = rankings_of(connected, corpus, texts, report, accessible, retrieval=retrieval, **pinned)
            hits = ([(hit.id, hit.score) for hit in ranking] for ranking in found)
            write_run(run, zip(texts, hits, strict=True), f"aeenc-{(retrieval or Retrieval()).mode}", names)
    if qrels is not None:
        write_qrels(qrels, judged(connected, corpus, measured["generation"], queries), names)


def strata_of(names: Sequence[StrataName], dataset: Source, split: str) -> dict[str, Strata]:
    """Makes the strata of these names, and by overlap. Raises InvalidArgument for depths without trees."""
    made: dict[str, Strata] = {"overlap": by_overlap()}
    if StrataName.DEPTH in names and not isinstance(dataset, Dataset):
        raise InvalidArgument("--by depth needs trees, and these data have none; leave it out")
    if StrataName.DEPTH in names and isinstance(dataset, Dataset):
        made["depth"] = by_depth(dataset.trees(split))
    return made | ({"split": by_split(dataset.candidates())} if StrataName.SPLIT in names else {})


def _folded(
    client: Client,
    place: tuple[str, str],
    dataset: Source,
    accessible: Mapping[str, Accessible],
    queries: Sequence[Gold],
    strata: Mapping[str, Strata],
    evaluated: Callable[..., values.EvaluationReport],
) -> dict[str, Any]:
    """Measures in a corpus and generation where premises that say the same are one; also by the strata given."""
    corpus, generation = place
    candidates = dataset.candidates()
    standing = _standing(client, corpus, generation) if accessible or strata else {}
    if accessible:
        accessible = accessible_folded(accessible, candidates, standing)
    report = evaluated(corpus, generation=generation, ranks=bool(strata), accessible=accessible)
    if not strata:
        return report_dict(report)
    return report_dict(report) | _strata_told(report, gold_folded(queries, candidates, standing), strata)


def _standing(client: Client, corpus: str, generation: str) -> dict[str, str]:
    """Maps each id of a generation, aliases too, to the id of the premise that stands for it."""
    premises = client.index.list_premises(corpus, generation=generation)
    return {name: one.id for one in premises for name in (one.id, *one.aliases)}


def _strata_told(
    report: values.EvaluationReport, queries: Iterable[Gold], strata: Mapping[str, Strata]
) -> dict[str, Any]:
    """Measures strata by the ranks of a report; nothing where it has none, or not those of all gold premises."""
    pairs = [(query, [one for one, grade in gold.items() if grade]) for query, gold in strict_gold(queries)]
    ranks = [np.array(one.strict, np.int64) for one in report.ranks if one.strict]
    if [len(one) for one in ranks] != [len(gold) for _, gold in pairs]:
        return {}
    return {"by": {name: strata_dict(metrics_by(one, pairs, ranks)) for name, one in strata.items()}}


def _compared(report: values.EvaluationReport, other: values.EvaluationReport) -> values.GateComparison:
    """Compares average precisions of two reports with ranks, under the strict protocol."""
    ours, theirs = (
        np.array(
            # rank 0 is that of a premise that was not found
            [average_precision(np.array([rank or UNRANKED for rank in one.strict])) for one in side.ranks if one.strict]
        )
        for side in (report, other)
    )
    found = difference_of(ours, theirs)
    return values.GateComparison(
        version=other.model_version,
        queries=len(ours),
        candidate_map=found.first,
        version_map=found.second,
        p_value=found.p_worse,
        p_better=found.p_better,
        outcome=values.Outcome[found.outcome],
    )


def _source(split: str, measured: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{measured[name]:,} {name}" for name in ("queries", "pairs", "candidates"))
    encoder = f"encoder {measured['model_version']}, " if measured["model_version"] else ""
    return f"{split}: {counts}; {encoder}generation {measured['generation']}"


def _against(measured: Mapping[str, Any]) -> list[str]:
    if not (compared := measured.get("against")):
        return []
    return [f"against {compared['version']}, MAP {compared['version_map']:.3f}: {outcome_words(compared)}"]


def judged(client: Client, corpus: str, generation: str, queries: Sequence[Gold]) -> list[Gold]:
    """Lists each query's gold premises by their ids in a generation, as its rankings name them.

    Raises FailedPrecondition for a gold premise that the generation lacks.
    """
    gold = list(strict_gold(queries))
    ids = {premise.text: premise.id for premise in client.index.list_premises(corpus, generation=generation)}
    if absent := next((text for _, premises in gold for text in premises if text not in ids), None):
        raise FailedPrecondition(
            f"gold premise {absent[:80]!r} is not in generation {generation} of corpus {corpus!r}; build the corpus "
            "from facts that have it, or leave --corpus out"
        )
    return [(query, {ids[text]: grade for text, grade in premises.items()}) for query, premises in gold]


def rankings_of(
    client: Client,
    corpus: str,
    texts: Sequence[str],
    report: Report,
    accessible: Mapping[str, Accessible] | None = None,
    **options: Any,
) -> Iterator[list[Hit]]:
    """Yields the ranking of each text by `IndexClient.rankings`, and reports how far it is.

    All are ranked by the version and in the generation that ranked the first ones. `accessible` has, by text, what may
    be found (default: everything).
    """
    for start in range(0, len(texts), PART):
        part = texts[start : start + PART]
        may = [accessible.get(text, EVERYTHING) for text in part] if accessible else ()
        found = client.index.rankings(corpus, part, accessible=may, **options)
        if found.model_version:
            options |= {"label": None, "version": found.model_version}
        options["generation"] = found.generation
        yield from found.results
        report(start + len(part), len(texts), "")
