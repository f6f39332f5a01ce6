"""What callers ask of the index, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aeenc.calls.encoding import Precision
from services.index.fusion import LEXICAL_WEIGHT, Method

Mode = Literal["DENSE", "LEXICAL", "ITERATIVE_LEXICAL", "HYBRID"]
WITHOUT_ENCODER = {"LEXICAL", "ITERATIVE_LEXICAL"}


@dataclass(frozen=True)
class Scope:
    """Which premises may be returned, and how many a query."""

    corpus: str
    k: int
    exclude_ids: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    generation: str = ""


@dataclass(frozen=True)
class TextQuery:
    """Texts to find premises for, and how. `version` or `label` names the query encoder; None: the label `stable`.

    `accepted` has ids of premises by text, or is empty; `rerank` says how many premises the cross-encoder orders anew
    (0: none), `rerank_weight` how much its score adds to that of the first ranking (0: its score alone decides);
    `prior` is the share of the explanatory-power prior, `negative_feedback` that of what the best of a first ranking
    have in common, both from 0 to 1. `precision`, `routing_key` and `request_id` are the encoder's matter and passed
    on; empty ones leave it the choice.
    """

    texts: tuple[str, ...]
    scope: Scope
    label: str | None = None
    version: str | None = None
    drop_self: bool = True
    truncate: bool = False
    mode: Mode = "DENSE"
    accepted: tuple[tuple[str, ...], ...] = ()
    rerank: int = 0
    rerank_weight: float = 0.0
    prior: float = 0.0
    negative_feedback: float = 0.0
    lexical_weight: float = LEXICAL_WEIGHT
    fusion: Method = "min_max"
    precision: Precision | None = None
    routing_key: str = ""
    request_id: str = ""
