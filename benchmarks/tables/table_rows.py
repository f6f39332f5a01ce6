"""The rows of Table 1: what the paper prints, and how each is measured here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from aeenc import Fusion, Retrieval
from aeenc.loop import Loop, Round
from aeenc.trees import Dataset
from benchmarks.tables.research import GOLD, INFERENCES, NLI, Research, Unfinished
from benchmarks.tables.table_text import SHARE
from benchmarks.tables.untrained import bm25, iterative_bm25, tf_idf
from services.trainer.models.base_model import DEFAULT_NAME

PAPER_SOURCE = "Bogatu et al. 2022, Table 1 (test split, 16,471 candidates)"


def _printed() -> dict[str, dict[str, float]]:
    """Reads what the paper prints, by its names of systems and metrics."""
    lines = (Path(__file__).parent / "paper-table1.tsv").read_text().splitlines()
    head, *rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {name: dict(zip(head[1:], map(float, figures), strict=True)) for name, *figures in rows}


PRINTED: Mapping[str, Mapping[str, float]] = _printed()
ROUNDS = 4
K = 20
THREE = (0, 1, 2)
# Tried for the losses of others; that of OURS was chosen so, too.
TEMPERATURES: Sequence[Mapping[str, float]] = [{"temperature": one} for one in (0.03, 0.05, 0.1)]
# The paper's grid.
GRID: Sequence[Mapping[str, float]] = [
    {"batch_size": size, "learning_rate": rate} for size, rate in product((32, 64, 128), (1e-5, 3e-5, 5e-5))
]
# Tried for the paper's loss. The paper fixes both at .1.
MARGINS: Sequence[Mapping[str, float]] = [
    {"margin": margin, "regularization": weight} for margin, weight in product((0.05, 0.1, 0.5), repeat=2)
]
# The paper's hyper-parameters: batch 32, learning rate 1e-5, 5 epochs, margin and regularisation 0.1. A batch here has
# 32 queries with all their triplets instead of 32 triplets, so that steps are a fortieth, and the rate is twenty times
# the paper's (docs/experiments/trainer.md).
FAITHFUL: Mapping[str, Any] = {
    "data_sets": [GOLD],
    "batching": "BATCHING_QUERIES",
    "batch_size": 32,
    "learning_rate": 2e-4,
    "epochs": 5,
    "margin": 0.1,
    "regularization": 0.1,
}
# Where premises are trained too, a query's triplets have some twenty texts to encode, and a step of FAITHFUL takes ten
# seconds of a core: batches have 32 triplets, and an epoch is a new random part of them, but for rows in ALL_TRIPLETS.
ALL_TRIPLETS = {"tml-dual", "tml-siamese"}
BOTH_SIDES: Mapping[str, Any] = {
    **FAITHFUL,
    "batching": "BATCHING_ITEMS",
    "items_per_epoch": 4_000,
    "learning_rate": 5e-5,
}
SCL, TML = "LOSS_PAIRWISE_CONTRASTIVE", "LOSS_TRIPLET_MARGIN"
OURS: Mapping[str, Any] = {
    "data_sets": [GOLD],
    "loss": "LOSS_FULL_CORPUS_SOFTMAX",
    "temperature": 0.03,
    "learning_rate": 1e-4,
    "batch_size": 64,
    "epochs": 8,
    "initial_share": 0.05,
}
# The best loss of `make nli` that needs no guide.
NLI_FIRST: Mapping[str, Any] = {
    "data_sets": [NLI],
    "loss": "LOSS_MULTIPLE_NEGATIVES_RANKING",
    "mode": "MODE_SIAMESE",
    "epochs": 1,
    "split": "",  # it has none
}
# Orders the first premises of OURS anew: half an hour on two cores.
RERANKER: Mapping[str, Any] = {
    "data_sets": [GOLD],
    "mode": "MODE_CROSS_ENCODER",
    "epochs": 3,
}
# What `make bench NAME=trainer ARGS='--only retrieval'` at de95d670 found on dev.
FULL = Retrieval("hybrid", Fusion(lexical_weight=0.15), prior=0.07, negative_feedback=0.15)
# What `make bench NAME=quality ARGS='--only ours'` found on train, out of fold.
ORDERED = Retrieval(
    "hybrid",
    Fusion(
        lexical_weight=0.22,
        features={
            "first": 3.399,
            "rank": 0.4296,
            "iterative": 0.2787,
            "query_covered": -6.383,
            "premise_covered": 1.534,
            "length": 0.1334,
            "words_given_others": 4.665,
            "left_by_others": 1.301,
            "vectors_given_others": 2.927,
        },
    ),
    prior=0.04,
    negative_feedback=0.11,
)
VECTORS = Retrieval("dense", Fusion(features={"first": 3.34, "rank": 0.82, "vectors_given_others": 7.03}))  # the same
TUNED = replace(ORDERED, fusion=Fusion(lexical_weight=0.22))  # the same without features
RERANKED = replace(FULL, rerank=20, rerank_weight=0.2)
# The weight is that of cross-encoders of one epoch on half of train, over the other half (docs/experiments/trainer.md).
ORDERED_RERANKED = replace(ORDERED, rerank=20, rerank_weight=0.1)

Measure = Callable[[Research, str, int], dict[str, Any]]


@dataclass(frozen=True)
class TableRow:
    """One row. `offline` measures without a fleet, from data and split; `measure` with one, from split and seed.

    `settings` are the trainer's beside the base model; `printed` is the paper's name of the system; `against` names the
    row that it is compared with, by tree. A `long` row is measured only where it is named.
    """

    name: str
    title: str
    offline: Callable[[Dataset, str], dict[str, Any]] | None = None
    measure: Measure | None = None
    seeds: tuple[int, ...] = (0,)
    base_model: str = DEFAULT_NAME
    settings: Mapping[str, Any] = field(default_factory=dict)
    printed: str = ""
    against: str = "minilm"
    long: bool = False

    @property
    def paper(self) -> Mapping[str, float]:
        """What the paper prints of the system; empty: it has none such."""
        return PRINTED[self.printed] if self.printed else {}


def retrieved(retrieval: Retrieval | None) -> Measure:
    """The pre-trained encoder, or a mode of Retrieve with it."""

    def measure(research: Research, split: str, seed: int) -> dict[str, Any]:
        del seed
        research.serve(research.pretrained())
        return research.evaluate(split, retrieval=retrieval)

    return measure


def trained(name: str, fields: Mapping[str, Any], retrieval: Retrieval | None = None) -> Measure:
    """One job on gold data, published and evaluated as it is served: its encoder, or a mode of Retrieve with it."""

    def measure(research: Research, split: str, seed: int) -> dict[str, Any]:
        research.serve(version_of(research, name, fields, seed))
        return research.evaluate(split, retrieval=retrieval)

    return measure


def tuned(name: str, fields: Mapping[str, Any], grid: Sequence[Mapping[str, float]]) -> Measure:
    """A job as in `trained`, by those fields of a grid whose encoder of the first seed is the best on dev."""

    def measure(research: Research, split: str, seed: int) -> dict[str, Any]:
        jobs = [research.train(f"table1-{name}-0", {**fields, **tried, "seed": 0}) for tried in grid]
        tries = [{**tried, "MAP": job.progress.best_validation_map} for tried, job in zip(grid, jobs, strict=True)]
        best = grid[max(range(len(grid)), key=lambda n: tries[n]["MAP"])]
        research.serve(version_of(research, name, {**fields, **best}, seed))
        return {**research.evaluate(split), "chosen": dict(best), "dev_by_choice": tries}

    return measure


def reranked(research: Research, split: str, seed: int) -> dict[str, Any]:
    """Row `ours-full` with a cross-encoder that one more job has trained."""
    research.publish(scorer_of(research, seed))
    research.serve(version_of(research, "ours", OURS, seed))
    return research.evaluate(split, retrieval=RERANKED)


def scorer_of(research: Research, seed: int) -> str:
    """The cross-encoder whose negatives are what the encoder of `ours` ranks first."""
    encoder = version_of(research, "ours", OURS, seed)
    return version_of(research, "reranker", {**RERANKER, "base_version": encoder}, seed)


def whole_of(research: Research, seed: int) -> str:
    """The encoder of `ours` after its last epoch, which no split has chosen."""
    return str(research.train("whole", {**OURS, "seed": seed, "validation": []}).version)


def out_of_fold(retrieval: Retrieval) -> Measure:
    """The encoder of `ours` after its last epoch, by a mode of Retrieve whose weights were tuned out of fold."""

    def measure(research: Research, split: str, seed: int) -> dict[str, Any]:
        if retrieval.rerank:
            research.publish(scorer_of(research, seed))
        research.serve(whole_of(research, seed))
        return research.evaluate(split, retrieval=retrieval)

    return measure


def after_nli(research: Research, split: str, seed: int) -> dict[str, Any]:
    """Row `ours`, after a first stage that trains queries and premises on natural language inference."""
    if not INFERENCES.is_file():
        raise Unfinished(f"{INFERENCES} is not there; lay SNLI's lines out beside the trees")
    first = version_of(research, "nli", NLI_FIRST, seed)
    research.serve(first)
    research.serve(version_of(research, "nli-first", {**OURS, "base_version": first}, seed))
    return research.evaluate(split)


def version_of(research: Research, name: str, fields: Mapping[str, Any], seed: int) -> str:
    """The checkpoint of a row's job; trained only if it was not before."""
    return str(research.train(f"table1-{name}-{seed}", {**fields, "seed": seed}).version)


def best_trained(loop: Loop, rounds: int) -> Round:
    """The best on dev of a loop's first so many rounds, not the encoder that it began with.

    Another row may have gone on with the same loop.
    """
    return max(loop.rounds[1 : rounds + 1], key=lambda one: one.validation_map)


def looped(loop: str, rounds: int, fields: Mapping[str, Any], later_run: Mapping[str, Any] | None = None) -> Measure:
    """Rounds of sampling and training; the row is the best of them on dev, the others stand beside it."""

    def measure(research: Research, split: str, seed: int) -> dict[str, Any]:
        done = research.loop(
            f"{loop}-{seed}", rounds=rounds, run={"k": K}, job={**fields, "seed": seed}, later_run=later_run
        )
        best = best_trained(done, rounds)
        research.serve(best.version)
        by_round = {one.number: one.report for one in done.rounds[: rounds + 1]}
        return {**research.evaluate(split), "best_round": best.number, "dev_by_round": by_round}

    return measure


def _job(name: str, title: str, fields: Mapping[str, Any], seeds: tuple[int, ...] = (0,), **more: Any) -> TableRow:
    return TableRow(name, title, measure=trained(name, fields), seeds=seeds, **more)


def _modes(loss: str, name: str, title: str) -> list[TableRow]:
    rows = []
    for mode in ("Single", "Siamese", "Dual"):
        row, printed = f"{name}-{mode.lower()}", f"SBERT+{title} {mode}-enc"
        is_share = mode != "Single" and row not in ALL_TRIPLETS
        rows.append(
            _job(
                row,
                f"MiniLM + {title}, {mode.lower()}{SHARE if is_share else ''}",
                {**(BOTH_SIDES if is_share else FAITHFUL), "loss": loss, "mode": f"MODE_{mode.upper()}"},
                seeds=THREE if mode == "Single" else (0,),
                printed=printed if printed in PRINTED else "",
            )
        )
    return rows


def _in_pairs(mode: str) -> list[TableRow]:
    """AE-Enc as the paper has it: each round trains premises, too, from the pre-trained encoder."""
    fields = {**BOTH_SIDES, "loss": TML, "mode": f"MODE_{mode.upper()}"}
    without = {**fields, "regularization": 0.0}
    title, name = f"AE-Enc, one round, {mode}, 4,000 triplets an epoch", f"ae-enc-{mode}"
    return [
        TableRow(name, title, measure=looped(name, 1, fields), against="ae-enc"),
        TableRow(
            f"{name}-no-reg",
            f"{title}, without regularisation",
            measure=looped(f"{name}-no-reg", 1, without),
            against=name,
        ),
    ]


def _others(*losses: tuple[str, str, str]) -> list[TableRow]:
    """The rows of losses that the paper does not try, by name, title and the trainer's name of it."""
    return [
        TableRow(
            name,
            f"MiniLM + {title}, single",
            measure=tuned(name, {**_OTHERS, "loss": loss}, TEMPERATURES),
            seeds=THREE,
            against="ours",
        )
        for name, title, loss in losses
    ]


def _elsewhere(slug: str, title: str, base_model: str, pooling: str, printed: str) -> list[TableRow]:
    """The rows of a base model that must be downloaded."""
    model: Mapping[str, Any] = {"base_model": base_model, "settings": {"pooling": pooling}}
    scl = f"{printed}+SCL" if f"{printed}+SCL" in PRINTED else ""
    return [
        TableRow(slug, title, measure=retrieved(None), printed=printed, **model),
        _job(f"{slug}-scl", f"{title} + SCL, single", {**FAITHFUL, "loss": SCL}, printed=scl, **model),
        _job(f"{slug}-tml", f"{title} + TML, single", {**FAITHFUL, "loss": TML}, **model),
    ]


_TML: Mapping[str, Any] = {**FAITHFUL, "loss": TML}
# The paper's steps, one by one: 5 epochs of 166,486 triplets in batches of 32 are 26,000 steps, some three core-hours.
LITERAL: Mapping[str, Any] = {**_TML, "batching": "BATCHING_ITEMS", "learning_rate": 1e-5}
# Losses that the paper does not try, with the batches, rate and epochs of OURS, and a temperature tuned for each.
_OTHERS: Mapping[str, Any] = {name: value for name, value in OURS.items() if name not in {"loss", "temperature"}}
_POSITIVES: Mapping[str, Any] = {"collect": "COLLECT_POSITIVES_ONLY"}
ROWS: tuple[TableRow, ...] = (
    TableRow("tf-idf", "TF-IDF", offline=tf_idf, printed="TF-IDF"),
    TableRow("bm25", "BM25", offline=bm25),
    TableRow("i-bm25", "I-BM25", offline=iterative_bm25),
    TableRow("bm25-stems", "BM25, stems (mode lexical)", measure=retrieved(Retrieval("lexical"))),
    TableRow(
        "i-bm25-stems", "I-BM25, stems (mode iterative_lexical)", measure=retrieved(Retrieval("iterative_lexical"))
    ),
    TableRow("minilm", "MiniLM, untrained (the paper's SBERT)", measure=retrieved(None), printed="SBERT"),
    TableRow("minilm-hybrid", "MiniLM, untrained, mode hybrid", measure=retrieved(Retrieval("hybrid"))),
    *_modes(SCL, "scl", "SCL"),
    _job("scl-single-wide", "MiniLM + SCL, single, m = .5", {**FAITHFUL, "loss": SCL, "margin": 0.5}),
    *_modes(TML, "tml", "TML"),
    _job("tml-literal", "MiniLM + TML, single, the paper's steps", LITERAL, long=True),
    TableRow(
        "tml-grid",
        "MiniLM + TML, single, the paper's steps, the best of its 3 x 3 batches and rates on dev",
        measure=tuned("tml-literal", LITERAL, GRID),  # whose job is one of the nine
        long=True,
    ),
    TableRow(
        "tml-margins",
        "MiniLM + TML, single, the paper's steps, the best of 3 x 3 margins and weights on dev",
        measure=tuned("tml-literal", LITERAL, MARGINS),  # whose job is one of the nine
        long=True,
    ),
    TableRow("ae-enc", "AE-Enc, one round", measure=looped("ae-enc-iterative", 1, _TML), seeds=THREE, printed="AE-Enc"),
    TableRow(
        "ae-enc-no-reg",
        "AE-Enc, one round, without regularisation",
        measure=looped("ae-enc-no-reg", 1, {**_TML, "regularization": 0.0}),
        seeds=THREE,
        printed="AE-Enc no regularisation",
        against="ae-enc",
    ),
    *_in_pairs("siamese"),
    *_in_pairs("dual"),
    TableRow(
        "ae-enc-iterative-no-reg",
        "AE-Enc, iterative, without regularisation",
        measure=looped("ae-enc-no-reg", ROUNDS, {**_TML, "regularization": 0.0}),
        against="ae-enc-iterative",
    ),
    TableRow(
        "ae-enc-positives-later",
        "AE-Enc, iterative, positives alone from round 2 on",
        measure=looped("ae-enc-positives-later", ROUNDS, _TML, _POSITIVES),
        against="ae-enc-iterative",
    ),
    TableRow(
        "ae-enc-pair-log",
        "AE-Enc, iterative, pair log alone",
        measure=looped("ae-enc-pair-log", ROUNDS, {**_TML, "data_sets": []}),
        against="ae-enc-iterative",
    ),
    TableRow(
        "ae-enc-iterative",
        "AE-Enc, iterative",
        measure=looped("ae-enc-iterative", ROUNDS, _TML),
        seeds=THREE,
        printed="Iterative AE-Enc",
    ),
    *_others(
        ("mnrl", "MNRL", "LOSS_MULTIPLE_NEGATIVES_RANKING"),
        ("supcon", "SupCon", "LOSS_SUPERVISED_CONTRASTIVE"),
        ("gist", "GIST", "LOSS_GIST"),
    ),
    _job("ours", "ours: full-corpus softmax, query encoder alone", OURS, seeds=THREE),
    TableRow("nli-first", "ours, after a first stage of NLI", measure=after_nli, against="ours", long=True),
    TableRow("ours-full", "ours: full retrieval", measure=trained("ours", OURS, FULL), seeds=THREE, against="ours"),
    TableRow(
        "ours-tuned",
        "ours: full retrieval, weights tuned on train",
        measure=out_of_fold(TUNED),
        seeds=THREE,
        against="ours",
    ),
    TableRow(
        "ours-ordered",
        "ours: full retrieval, weights tuned on train, premises ordered together",
        measure=out_of_fold(ORDERED),
        seeds=THREE,
        against="ours-tuned",
    ),
    TableRow(
        "ours-ordered-reranked",
        "ours: full retrieval, weights tuned on train, premises ordered together, re-ranked",
        measure=out_of_fold(ORDERED_RERANKED),
        seeds=THREE,
        against="ours-ordered",
    ),
    TableRow("ours-reranked", "ours: full retrieval, re-ranked", measure=reranked, seeds=THREE, against="ours-full"),
    # The directories of the first three say nothing of pooling. DPR's question encoder encodes premises, too, since a
    # space begins with one base model.
    *_elsewhere("bert", "BERT, mean", "bert-base-uncased", "mean", "BERT-base-uncased"),
    *_elsewhere("dpr", "DPR's question encoder, [CLS]", "facebook/dpr-question_encoder-single-nq-base", "cls", "DPR"),
    *_elsewhere("simcse", "SimCSE, [CLS]", "princeton-nlp/sup-simcse-bert-base-uncased", "cls", "SimCSE"),
    *_elsewhere("t5", "Sentence-T5", "sentence-transformers/sentence-t5-base", "", "T5-base+enc-mean"),
)
BY_NAME: Mapping[str, TableRow] = {row.name: row for row in ROWS}
