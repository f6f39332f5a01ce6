"""A person's answer to a task, as tests write it: verdicts by premise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aeenc.oracle import Verdict as SdkVerdict
from aeenc.values import Answer, Judgement, Remark, Verdict
from services.sampler.people.decisions import SentAnswer


def verdict(premise_id: str, said: SdkVerdict | int, text: str = "") -> Verdict:
    """One verdict as the sampler reads it."""
    one = said if isinstance(said, SdkVerdict) else SdkVerdict(said)  # type: ignore[arg-type]
    return Verdict(
        premise_id=premise_id,
        judgement=Judgement(one.judgement),
        leaf=one.leaf,
        grade=one.grade,
        remark=Remark(one.remark),
        text=text,
    )


def sent(
    verdicts: Iterable[tuple[str, SdkVerdict | int]] = (),
    seen_upto: int = 0,
    elapsed_s: float | None = None,
    **said: Any,
) -> SentAnswer:
    """An answer; `said` are its other fields."""
    given = tuple(verdict(premise_id, one) for premise_id, one in verdicts)
    return SentAnswer(Answer(verdicts=given, **said), seen_upto, elapsed_s)
