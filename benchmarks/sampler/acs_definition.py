"""Algorithm 2 as the paper defines it: cosines in float64, gold trees in memory, one node after another.

Shares no code with `services.sampler`. What it says a run must record is what the benchmark compares runs with.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc import SamplerClient, values
from aeenc.trees import Candidate, Dataset

GAP = 1e-5  # scores closer than this are one rank to float32 embeddings that were computed in other batches
CHUNK = 256


@dataclass(frozen=True)
class SignedPair:
    """One pair as a run records it: `sign` is + or -."""

    query: str
    premise: str
    sign: str


Pairs = Mapping[SignedPair, float]  # with the score of each


class Definition:
    """The nearest premises of every gold query, and what a run over hypotheses must record."""

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        k: int,
        max_depth: int,
        premises: Sequence[Candidate],
        vectors: NDArray[np.floating],
        queries: Mapping[str, NDArray[np.floating]],
    ) -> None:
        self._gold = {query.text: set(query.gold) for query in dataset.queries(split)}
        self._k, self._max_depth = k, max_depth
        allowed = [not one.splits or bool({"facts", split} & set(one.splits)) for one in premises]
        kept = [one for one, may in zip(premises, allowed, strict=True) if may]
        matrix = vectors[np.array(allowed)].astype(np.float64)  # (n, dim)
        self.nearest: dict[str, list[tuple[str, float]]] = {}
        texts = list(queries)
        for start in range(0, len(texts), CHUNK):
            part = texts[start : start + CHUNK]
            scores = np.stack([queries[text] for text in part]).astype(np.float64) @ matrix.T  # (queries, n)
            for text, row in zip(part, scores.astype(np.float32), strict=True):
                self.nearest[text] = self._best(text, row, kept)

    def _best(self, text: str, row: NDArray[np.float32], premises: Sequence[Candidate]) -> list[tuple[str, float]]:
        enough = self._k + self._max_depth + 1  # k are left without the query and its ancestors
        order = np.argsort(-row, kind="stable")[:enough]  # equal scores stay in the order of insertion
        return [(premises[n].text, float(row[n])) for n in order if premises[n].text != text]

    def pairs(self, hypotheses: Iterable[str]) -> dict[SignedPair, float]:
        """The pairs that a run over the hypotheses records; leaves are premises without gold children."""
        found: dict[SignedPair, float] = {}
        for hypothesis in hypotheses:
            visited = {hypothesis}
            waiting: deque[tuple[str, tuple[str, ...]]] = deque([(hypothesis, ())])
            while waiting:
                query, path = waiting.popleft()
                candidates = [(premise, score) for premise, score in self.nearest[query] if premise not in path]
                for premise, score in candidates[: self._k]:
                    explains = premise in self._gold[query]
                    found[SignedPair(query, premise, "+" if explains else "-")] = score
                    if explains and premise in self._gold and premise not in visited and len(path) < self._max_depth:
                        visited.add(premise)
                        waiting.append((premise, (*path, query)))
        return found

    def gold_in_reach(self, expanded: Iterable[str]) -> set[tuple[str, str]]:
        """The gold children of expanded queries that stand in the top k."""
        return {
            (query, premise)
            for query in expanded
            for premise, _ in self.nearest[query][: self._k]
            if premise in self._gold[query]
        }


async def recorded(client: SamplerClient, run_id: str) -> dict[SignedPair, float]:
    """The pairs of a run with their scores; each must stand once in its log, and the log have no gaps."""
    signs = {values.PairSign.POSITIVE: "+", values.PairSign.NEGATIVE: "-", values.PairSign.SKIPPED: "?"}
    log = [pair async for pair in client.list_pairs(run_id)]
    found = {SignedPair(pair.query, pair.premise, signs[pair.sign]): pair.provenance.score for pair in log}
    assert len(found) == len(log), "a pair stands twice in the log"
    assert [pair.seq for pair in log] == list(range(1, len(log) + 1)), "the log has gaps"
    return found


def differences(one: Pairs, other: Pairs) -> tuple[list[SignedPair], list[SignedPair]]:
    """The pairs that stand in one only: swaps of as many for as many with scores closer than GAP, and all others."""
    by_query: dict[str, list[SignedPair]] = defaultdict(list)
    for pair in one.keys() ^ other.keys():
        by_query[pair.query].append(pair)
    swaps: list[SignedPair] = []
    others: list[SignedPair] = []
    for pairs in by_query.values():
        scores = [one[pair] if pair in one else other[pair] for pair in pairs]
        even = 2 * sum(pair in one for pair in pairs) == len(pairs)
        (swaps if even and max(scores) - min(scores) < GAP else others).extend(pairs)
    return swaps, others
