"""The rows of Table 1: what the paper prints, and how each is measured here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aeenc import Fusion, Retrieval
from aeenc.trees import Dataset
from benchmarks.tables.research import GOLD, Research
from benchmarks.tables.untrained import bm25, iterative_bm25, tf_idf
from services.trainer.models.base_model import DEFAULT_NAME

# Bogatu et al. 2022 (arXiv 2208.01376), Table 1, test split, protocol `paper`; only figures that we know for sure.
PAPER_SOURCE = "Bogatu et al. 2022, Table 1 (test split)"
PAPER: Mapping[str, Mapping[str, float]] = {
    "tf-idf": {"MAP": 0.335, "NDCG": 0.525, "Hit@10": 0.628},
    "minilm": {"MAP": 0.356, "NDCG": 0.546, "Hit@10": 0.666, "Hit@50": 0.845},
    "scl-single": {"MAP": 0.388, "NDCG": 0.574},
    "ae-enc-iterative": {
        "MAP": 0.451,
        "NDCG": 0.622,
        "NDCG@10": 0.562,
        "Hit@10": 0.758,
        "Hit@20": 0.842,
        "Hit@50": 0.920,
    },
}
ROUNDS = 4
K = 20
THREE = (0, 1, 2)
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
# Where premises are trained too, a query's triplets have some twenty texts to encode: batches have 32 triplets, and an
# epoch is a new random part of them.
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
# Orders the first premises of OURS anew: half an hour on two cores.
RERANKER: Mapping[str, Any] = {
    "data_sets": [GOLD],
    "mode": "MODE_CROSS_ENCODER",
    "epochs": 3,
}
# What `make bench NAME=trainer ARGS='--only retrieval'` found on dev.
FULL = Retrieval("hybrid", Fusion(lexical_weight=0.15), prior=0.07, negative_feedback=0.15)

RERANKED = replace(FULL, rerank=20, rerank_weight=0.2)

Measure = Callable[[Research, str, int], dict[str, Any]]


@dataclass(frozen=True)
class TableRow:
    """One row. `offline` measures without a fleet, from data and split; `measure` with one, from split and seed.

    `settings` are the trainer's beside the base model.
    """

    name: str
    title: str
    offline: Callable[[Dataset, str], dict[str, Any]] | None = None
    measure: Measure | None = None
    seeds: tuple[int, ...] = (0,)
    base_model: str = DEFAULT_NAME
    settings: Mapping[str, Any] = field(default_factory=dict)


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


def reranked(research: Research, split: str, seed: int) -> dict[str, Any]:
    """Row `ours-full` with a cross-encoder that one more job has trained."""
    encoder = version_of(research, "ours", OURS, seed)
    scorer = version_of(research, "reranker", {**RERANKER, "base_version": encoder}, seed)
    research.serve(encoder)
    research.score_with(scorer)
    return research.evaluate(split, retrieval=RERANKED)


def version_of(research: Research, name: str, fields: Mapping[str, Any], seed: int) -> str:
    """The checkpoint of a row's job; trained only if it was not before."""
    return str(research.train(f"table1-{name}-{seed}", {**fields, "seed": seed}).version)


def looped(loop: str, rounds: int, fields: Mapping[str, Any]) -> Measure:
    """Rounds of sampling and training; the row is the best of them on dev, the others stand beside it."""

    def measure(research: Research, split: str, seed: int) -> dict[str, Any]:
        done = research.loop(f"{loop}-{seed}", rounds=rounds, run={"k": K}, job={**fields, "seed": seed})
        trained = done.rounds[1 : rounds + 1]  # another row may have gone on with the same loop
        best = max(trained, key=lambda one: one.validation_map)
        research.serve(best.version)
        by_round = {one.number: one.report for one in done.rounds[: rounds + 1]}
        return {**research.evaluate(split), "best_round": best.number, "dev_by_round": by_round}

    return measure


def _job(name: str, title: str, fields: Mapping[str, Any], seeds: tuple[int, ...] = (0,), **more: Any) -> TableRow:
    return TableRow(name, title, measure=trained(name, fields), seeds=seeds, **more)


def _modes(loss: str, name: str, title: str) -> list[TableRow]:
    both = {**BOTH_SIDES, "loss": loss}
    return [
        _job(f"{name}-single", f"MiniLM + {title}, single", {**FAITHFUL, "loss": loss}),
        _job(f"{name}-siamese", f"MiniLM + {title}, siamese", {**both, "mode": "MODE_SIAMESE"}),
        _job(f"{name}-dual", f"MiniLM + {title}, dual", {**both, "mode": "MODE_DUAL"}),
    ]


def _elsewhere(slug: str, title: str, base_model: str, pooling: str) -> list[TableRow]:
    """The rows of a base model that must be downloaded."""
    model: Mapping[str, Any] = {"base_model": base_model, "settings": {"pooling": pooling}}
    return [
        TableRow(slug, title, measure=retrieved(None), **model),
        _job(f"{slug}-scl", f"{title} + SCL, single", {**FAITHFUL, "loss": SCL}, **model),
        _job(f"{slug}-tml", f"{title} + TML, single", {**FAITHFUL, "loss": TML}, **model),
    ]


_TML: Mapping[str, Any] = {**FAITHFUL, "loss": TML}
ROWS: tuple[TableRow, ...] = (
    TableRow("tf-idf", "TF-IDF", offline=tf_idf),
    TableRow("bm25", "BM25", offline=bm25),
    TableRow("i-bm25", "I-BM25", offline=iterative_bm25),
    TableRow("bm25-stems", "BM25, stems (mode lexical)", measure=retrieved(Retrieval("lexical"))),
    TableRow(
        "i-bm25-stems", "I-BM25, stems (mode iterative_lexical)", measure=retrieved(Retrieval("iterative_lexical"))
    ),
    TableRow("minilm", "MiniLM, untrained (the paper's SBERT)", measure=retrieved(None)),
    TableRow("minilm-hybrid", "MiniLM, untrained, mode hybrid", measure=retrieved(Retrieval("hybrid"))),
    *_modes(SCL, "scl", "SCL"),
    *_modes(TML, "tml", "TML"),
    TableRow("ae-enc", "AE-Enc, one round", measure=looped("ae-enc-iterative", 1, _TML), seeds=THREE),
    TableRow(
        "ae-enc-no-reg",
        "AE-Enc, iterative, without regularisation",
        measure=looped("ae-enc-no-reg", ROUNDS, {**_TML, "regularization": 0.0}),
    ),
    TableRow(
        "ae-enc-pair-log",
        "AE-Enc, iterative, pair log alone",
        measure=looped("ae-enc-pair-log", ROUNDS, {**_TML, "data_sets": []}),
    ),
    TableRow("ae-enc-iterative", "AE-Enc, iterative", measure=looped("ae-enc-iterative", ROUNDS, _TML), seeds=THREE),
    _job("ours", "ours: full-corpus softmax, query encoder alone", OURS, seeds=THREE),
    TableRow("ours-full", "ours: full retrieval", measure=trained("ours", OURS, FULL), seeds=THREE),
    # The directories of the first three say nothing of pooling. DPR's question encoder encodes premises, too, since a
    # space begins with one base model.
    TableRow("ours-reranked", "ours: full retrieval, re-ranked", measure=reranked, seeds=THREE),
    *_elsewhere("bert", "BERT, mean", "bert-base-uncased", "mean"),
    *_elsewhere("dpr", "DPR's question encoder, [CLS]", "facebook/dpr-question_encoder-single-nq-base", "cls"),
    *_elsewhere("simcse", "SimCSE, [CLS]", "princeton-nlp/sup-simcse-bert-base-uncased", "cls"),
    *_elsewhere("t5", "Sentence-T5", "sentence-transformers/sentence-t5-base", ""),
)
BY_NAME: Mapping[str, TableRow] = {row.name: row for row in ROWS}
