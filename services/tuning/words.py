"""`aeenc tune`: the settings of BM25 or iterative BM25 that find most of a split's gold premises. Needs no service.

    facts, queries ──► Measured ──► optuna proposes settings ──► recall@200, the mean over grades ──► the best settings
                                         └──────── binary gold: MAP ────────┘

The first trial has the defaults, so that the result is never worse than they on the tuned split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from aeenc.cli.corpus import LAYOUTS
from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.evaluation import (
    UNRANKED,
    accessible_of,
    average_precision,
    gold_of,
    load_data,
    recall_by_grade,
    strict_gold,
)
from aeenc.evaluation.metrics import Ranks
from aeenc.trees import Accessible
from services.index.values import LexicalSettings, SearchHits

if TYPE_CHECKING:
    import optuna

LENGTH = 200  # of the lists whose recall is maximised
DEPTH = 1000  # of the rankings whose MAP is
Ranker = Literal["bm25", "iterative"]
Queries = Sequence[tuple[str, Mapping[str, float]]]
_OF_BM25 = ("k1", "b", "words")  # the other settings are of iterative BM25


@dataclass(frozen=True)
class Measured:
    """Queries, the grades of their premises, and the texts of the corpus in order: what settings are measured on.

    `accessible` has the ordinals of what may be found for a query, by its text; none: all.
    """

    texts: Sequence[str]
    queries: Queries
    ranker: Ranker
    accessible: Mapping[str, slice | list[int]] = field(default_factory=dict)

    @property
    def graded(self) -> bool:
        """Whether a premise has another grade than 0 and 1."""
        return any(grade not in (0, 1) for _, grades in self.queries for grade in grades.values())

    @property
    def metric(self) -> str:
        """The name of the value."""
        return f"recall@{LENGTH}, mean over grades" if self.graded else "MAP"

    def value(self, settings: LexicalSettings) -> float:
        """Measures settings, strictly: a query does not find its own text."""
        ranks, grades = self._ranks(settings), [list(told.values()) for _, told in self.queries]
        if self.graded:
            recalls = recall_by_grade([own.tolist() for own in ranks], grades, (LENGTH,))
            return float(np.mean([recall for (recall,) in recalls.values()]))
        gold = [own[np.array(told) > 0] for own, told in zip(ranks, grades, strict=True)]
        return float(np.mean([average_precision(own) for own in gold]))

    def _ranks(self, settings: LexicalSettings) -> list[Ranks]:
        from services.index.lexical.bm25 import LexicalIndex, best

        index, k = LexicalIndex.of(self.texts, settings), LENGTH if self.graded else DEPTH
        ordinal = {text: n for n, text in enumerate(self.texts)}
        found = list[Ranks]()
        for text, grades in self.queries:
            allowed, terms = np.zeros(len(self.texts), dtype=bool), index.terms(text)
            allowed[self.accessible.get(text, slice(None))] = True
            if text in ordinal:
                allowed[ordinal[text]] = False
            by_rounds = self.ranker == "iterative"
            hits = index.iterate(terms, k, allowed) if by_rounds else best(index.scores(terms), k, allowed)
            found.append(ranks_in(hits, [ordinal[one] for one in grades]))
        return found


def ranks_in(hits: SearchHits, ordinals: Iterable[int]) -> Ranks:
    """The ranks of some premises among the hits, from 1."""
    ranks = {ordinal: rank for rank, ordinal in enumerate(hits.ordinals.tolist(), start=1)}
    return np.array([ranks.get(one, UNRANKED) for one in ordinals], dtype=np.int64)


def searched(
    value: Callable[[optuna.Trial], float], first: Iterable[Mapping[str, Any]], trials: int, seed: int
) -> optuna.Study:
    """Searches for the highest value by optuna's tree-structured Parzen estimator, after the first trials given."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for known in first:
        study.enqueue_trial(dict(known))
    study.optimize(value, n_trials=trials)
    return study


def check_installed(extras: Mapping[str, str]) -> None:
    """Raises FailedPrecondition for the first module that is missing, naming the extra that has it."""
    for module, extra in extras.items():
        if find_spec(module) is None:
            raise FailedPrecondition(f"this needs {module}; install aeenc-services with the extra {extra}")


def tune(measured: Measured, *, trials: int, seed: int, lemmas: bool = False) -> LexicalSettings:
    """Searches for the best settings. Equal seeds give equal results."""
    words = ["stems", "words", *(["lemmas"] if lemmas else [])]
    first = asdict(LexicalSettings())
    study = searched(lambda trial: measured.value(_proposed(trial, measured.ranker, words)), [first], trials, seed)
    return replace(LexicalSettings(), **study.best_params)


def _proposed(trial: optuna.Trial, ranker: Ranker, words: list[str]) -> LexicalSettings:
    settings = LexicalSettings(
        k1=trial.suggest_float("k1", 0.1, 4.0, step=0.05),
        b=trial.suggest_float("b", 0.0, 1.0, step=0.05),
        words=trial.suggest_categorical("words", words),  # type: ignore[arg-type]
    )
    if ranker == "bm25":
        return settings
    return replace(
        settings,
        first_scale=trial.suggest_float("first_scale", 1.0, 4.0, step=0.05),
        downscale=trial.suggest_float("downscale", 1.0, 4.0, step=0.05),
        growth=trial.suggest_float("growth", 1.25, 4.0, step=0.25),
    )


def drawn_of(count: int, most: int, seed: int) -> list[int]:
    """Draws at most `most` of the numbers below `count`, in order; 0: all."""
    return sorted(np.random.default_rng(seed).permutation(count)[: most or None].tolist())


def measured_on(directory: Path, split: str, ranker: Ranker, most: int, seed: int) -> Measured:
    """Reads rated facts, or gold trees, of a split; at most `most` queries, drawn from the seed (0: all)."""
    dataset = load_data(directory)
    kept = list(strict_gold(gold_of(dataset, split)))
    kept = [kept[n] for n in drawn_of(len(kept), most, seed)]
    if not kept:
        raise InvalidArgument(f"split {split!r} of {directory} has no query with a gold premise; name another split")
    candidates = dataset.candidates()
    ordinal = {candidate.id: n for n, candidate in enumerate(candidates)}
    accessible = {text: _ordinals(one, ordinal) for text, one in accessible_of(dataset, split).items()}
    return Measured([candidate.text for candidate in candidates], kept, ranker, accessible)


def _ordinals(accessible: Accessible, ordinal: Mapping[str, int]) -> slice | list[int]:
    end = ordinal.get(accessible.before_id, len(ordinal))
    return [n for one in accessible.only_ids if (n := ordinal[one]) < end] if accessible.only_ids else slice(end)


def command(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help=LAYOUTS)],
    split: Annotated[str, typer.Option(help="The split to tune on.")] = "train",
    check: Annotated[str, typer.Option(help="Another split to measure the result on.")] = "",
    ranker: Annotated[Ranker, typer.Option(help="What to tune.")] = "iterative",
    trials: Annotated[int, typer.Option(min=2, help="Settings to try; the first are the defaults.")] = 100,
    queries: Annotated[int, typer.Option(min=0, help="At most so many queries of the split, drawn; 0: all.")] = 0,
    lemmas: Annotated[bool, typer.Option(help="Also try lemmas, which need the extra index-lemmas.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
) -> None:
    """Searches for the settings of BM25 that find most of a split's gold premises, and prints them for the index.

    Where --data says which premises are accessible to a query, no other is ranked for it.
    """
    from aeenc.cli.output import output_of, table

    check_installed(
        {"optuna": "index-tune", "Stemmer": "index-cpu"} | ({"simplemma": "index-lemmas"} if lemmas else {})
    )
    out = output_of(context)
    read = [(split, queries), (check, 0)] if check else [(split, queries)]
    splits = [(name, measured_on(data, name, ranker, most, seed)) for name, most in read]
    measured, defaults = splits[0][1], LexicalSettings()
    found = tune(measured, trials=trials, seed=seed, lemmas=lemmas)
    rows = [(name, len(one.queries), one.value(defaults), one.value(found)) for name, one in splits]
    told, environment = asdict(found), dict[str, str]()
    for name, value in told.items():
        if value != getattr(defaults, name):
            ranked_by = "BM25" if name in _OF_BM25 else "ITERATIVE"
            environment[f"AEENC_INDEX_{ranked_by}_{name.upper()}"] = f"{value:g}" if isinstance(value, float) else value
    result = {
        "metric": measured.metric,
        "settings": told,
        "environment": environment,
        "splits": {name: {"queries": n, "defaults": before, "tuned": after} for name, n, before, after in rows},
    }
    shown = [(name, n, f"{before:.4f}", f"{after:.4f}") for name, n, before, after in rows]
    lines = "\n".join(f"{name}={value}" for name, value in environment.items()) or "the defaults are the best"
    out.result(result, table([measured.metric, "queries", "defaults", "tuned"], shown, right=3), lines)


def register(app: typer.Typer) -> None:
    """Adds the command. Called through the entry-point group `aeenc.commands`."""
    app.command("tune")(command)
