"""Agreement of annotators: Cohen's and Fleiss' kappa (statsmodels), Krippendorff's alpha (krippendorff), common edges.

A rating is a person's yes or no on one candidate; abstained and unseen do not count. A figure is NaN where it is not
defined: no candidate has two ratings, or everybody always said the same, so that chance alone would agree.

The libraries bring scipy and pandas, 100 MB and seconds of import: `agreement_apart` computes in a process of its own
(`python -m services.sampler.people.agreement`), and the sampler stays small and responsive.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from aeenc import errors

MISSING = -1
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Agreement:
    """The figures, with the number of candidates that two or more people judged, and of annotators."""

    cohen_kappa: float
    fleiss_kappa: float
    krippendorff_alpha: float
    candidates: int
    annotators: int
    positive_agreement: float = field(default=math.nan, compare=False)
    edge_f1: float = field(default=math.nan, compare=False)


async def agreement_apart(ratings: Sequence[Mapping[str, bool]]) -> Agreement:
    """As `agreement_of`, in a process of its own. Raises Unavailable when that fails."""
    common = [dict(candidate) for candidate in ratings if len(candidate) > 1]
    if not common:
        return Agreement(math.nan, math.nan, math.nan, 0, 0)
    return await asyncio.to_thread(_apart, json.dumps(common))


def positive_agreement(ratings: Iterable[Mapping[str, bool]]) -> float:
    """The share of yes in which two people meet, 2a / (2a + b + c) over all pairs (Cicchetti and Feinstein 1990).

    Where nearly everything is refused, figures beyond chance hang on a few cells; this one leaves common refusals out.
    """
    both = one = 0
    for candidate in ratings:
        yes, rated = sum(candidate.values()), len(candidate)
        both += yes * (yes - 1) // 2
        one += yes * (rated - yes)
    return 2 * both / (2 * both + one) if both or one else math.nan


def edge_f1(trees: Iterable[Mapping[str, Set[str]]]) -> float:
    """How far people draw the same edges: F1 of what two accept for the same query, over all pairs.

    Each task by annotator, with the ids that they accept. What one has not seen, or has added, counts against the pair.
    """
    shared = drawn = 0
    for by_annotator in trees:
        for one, other in combinations(by_annotator.values(), 2):
            shared += len(one & other)
            drawn += len(one) + len(other)
    return 2 * shared / drawn if drawn else math.nan


def _apart(ratings: str) -> Agreement:
    # Not by asyncio: uvloop forks, and grpc's fork handlers crash now and then; `subprocess` uses vfork.
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(command, input=ratings, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired:
        raise errors.Unavailable(
            f"agreement took longer than {TIMEOUT_S:g} s; try again when less is going on"
        ) from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        raise errors.Unavailable(
            f"agreement could not be computed ({' '.join(last)}); is the extra `sampler` installed?"
        ) from None
    return Agreement(**json.loads(done.stdout))


def agreement_of(ratings: Sequence[Mapping[str, bool]]) -> Agreement:
    """The agreement on candidates, each given as annotator to yes or no. Imports what it needs, which takes seconds."""
    common = [candidate for candidate in ratings if len(candidate) > 1]
    names = sorted({annotator for candidate in common for annotator in candidate})
    column = {name: n for n, name in enumerate(names)}
    table = np.full((len(common), len(names)), MISSING, dtype=np.int8)  # (candidates, annotators)
    for row, candidate in enumerate(common):
        for annotator, yes in candidate.items():
            table[row, column[annotator]] = yes
    counts = np.stack([(table == value).sum(axis=1) for value in (0, 1)], axis=1)  # (candidates, 2)
    return Agreement(_cohen(table), _fleiss(counts), _krippendorff(counts), len(common), len(names))


def _cohen(table: NDArray[np.int8]) -> float:
    """The mean over pairs of annotators for which it is defined (Cohen 1960)."""
    from statsmodels.stats.inter_rater import cohens_kappa

    kappas = []
    for one, other in combinations(range(table.shape[1]), 2):
        both = (table[:, one] != MISSING) & (table[:, other] != MISSING)
        cells = np.bincount(2 * table[both, one] + table[both, other], minlength=4).reshape(2, 2)
        if both.any() and _chance_is_beatable(cells):
            kappas.append(float(cohens_kappa(cells, return_results=False)))
    return math.fsum(kappas) / len(kappas) if kappas else math.nan


def _chance_is_beatable(cells: NDArray[np.int64]) -> bool:
    """Whether two people who answer as often yes and no as these would differ by chance."""
    one, other = cells.sum(axis=1), cells.sum(axis=0)
    return int(one @ other) < int(cells.sum()) ** 2


def _fleiss(counts: NDArray[np.int64]) -> float:
    """Over the candidates with the most usual number of ratings (Fleiss 1971 wants one number for all)."""
    from statsmodels.stats.inter_rater import fleiss_kappa

    given = counts.sum(axis=1)
    if not len(given):
        return math.nan
    usual = np.bincount(given)
    most = len(usual) - 1 - int(np.argmax(usual[::-1]))  # of equally frequent numbers the greatest
    alike = counts[given == most]
    return float(fleiss_kappa(alike)) if (alike.sum(axis=0) > 0).all() else math.nan


def _krippendorff(counts: NDArray[np.int64]) -> float:
    """Nominal; any number of ratings a candidate (Krippendorff 2011)."""
    import krippendorff

    if not len(counts) or not (counts.sum(axis=0) > 0).all():
        return math.nan
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))


if __name__ == "__main__":
    json.dump(asdict(agreement_of(json.load(sys.stdin))), sys.stdout)
