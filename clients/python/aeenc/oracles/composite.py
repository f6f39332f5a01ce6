"""An oracle made of several: each candidate goes from one to the next until one decides, the cheapest first.

    task ─► gold trees ─ undecided ─► model ─ undecided ─► person ─► verdicts
                └── decided ────────────┴── a share is audited ─┘

The last oracle also audits a share of what the others have decided, to measure how far they can be trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from aeenc.errors import InvalidArgument
from aeenc.files.whole import naming
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Answer, Candidate, Oracle, Task, Verdict, answer_of

_DECIDED = (EXPLAINS, REFUSES)
_WORDS = {EXPLAINS: "explains", REFUSES: "refuses"}


@dataclass(frozen=True)
class AuditCounts:
    """How often the auditor has agreed and disagreed with one stage."""

    agreed: int
    disagreed: int


class CompositeOracle(Oracle):
    """Asks `stages` one after another about candidates that are still undecided (abstained or unseen).

    `audit` is the share of the decided candidates that the last stage judges as well, drawn from `seed` by query and
    premise. Where it disagrees the candidate becomes ABSTAIN: a conflict is nobody's negative. With `audit_log` each
    audited verdict is appended there as a line of JSON. An error of any stage is an error of the task.
    Raises InvalidArgument for fewer than two stages, or a share outside 0 to 1, OSError for a log that is not writable.
    """

    name = "composite"

    def __init__(
        self, stages: Sequence[Oracle], *, audit: float = 0.0, seed: int = 0, audit_log: Path | str | None = None
    ) -> None:
        if len(stages) < 2:
            raise InvalidArgument(f"a composite needs two oracles or more, got {len(stages)}")
        if not 0 <= audit <= 1:
            raise InvalidArgument.field("audit", f"is {audit}; give a share from 0 to 1")
        self._stages, self._audit, self._seed = tuple(stages), audit, seed
        self._log = Path(audit_log) if audit_log else None
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._write([])

    @property
    def audited(self) -> dict[str, AuditCounts]:
        """Counts the audited verdicts of each stage so far, by the stage's name."""
        with self._lock:
            return {
                stage.name: AuditCounts(self._counts[stage.name, True], self._counts[stage.name, False])
                for stage in self._stages[:-1]
            }

    async def judge(self, task: Task) -> Answer[dict[str, Verdict]]:
        """Returns the first decision on each candidate and who made it; a candidate may stay undecided.

        What is said of the node as a whole is the last stage's that was asked.
        """
        found: dict[str, Verdict] = {}
        answer = Answer(found)
        decided_by: dict[str, str] = {}
        *early, last = self._stages
        for stage in early:
            answer = await self._ask(stage, task, _open(task, decided_by), found, decided_by) or answer
        audited = [c for c in task.candidates if c.id in decided_by and self._is_audited(task.query, c.id)]
        remaining = _open(task, decided_by)
        checks: dict[str, Verdict] = {}
        answer = await self._ask(last, task, _in_order(task, [*remaining, *audited]), checks, {}) or answer
        for candidate in remaining:
            found[candidate.id] = _preferred(found.get(candidate.id), checks[candidate.id])
        if lines := self._compare(task, audited, found, checks, decided_by):
            await asyncio.to_thread(self._write, lines)
        return replace(answer, verdicts=found, annotator="")

    async def _ask(
        self,
        stage: Oracle,
        task: Task,
        candidates: Sequence[Candidate],
        found: dict[str, Verdict],
        decided_by: dict[str, str],
    ) -> Answer[dict[str, Verdict]] | None:
        if not candidates:
            return None
        given = await answer_of(stage, replace(task, candidates=tuple(candidates)))
        for premise_id, verdict in given.verdicts.items():
            named = replace(verdict, annotator=verdict.annotator or stage.name)
            found[premise_id] = _preferred(found.get(premise_id), named)
            if verdict.judgement in _DECIDED:
                decided_by[premise_id] = stage.name
        return given

    def _compare(
        self,
        task: Task,
        audited: Sequence[Candidate],
        found: dict[str, Verdict],
        checks: Mapping[str, Verdict],
        decided_by: Mapping[str, str],
    ) -> list[str]:
        """Takes back the verdicts that the auditor contradicts. An auditor who does not decide changes nothing.

        Returns the lines for the log.
        """
        lines = []
        for candidate in audited:
            before, check = found[candidate.id], checks[candidate.id]
            if check.judgement not in _DECIDED:
                continue
            agreed = check.judgement == before.judgement
            with self._lock:
                self._counts[decided_by[candidate.id], agreed] += 1
            if not agreed:
                found[candidate.id] = Verdict(ABSTAINS, annotator=f"{before.annotator} against {check.annotator}")
            line = {
                "format_version": 1,
                "run_id": task.run_id,
                "task_id": task.task_id,
                "query": task.query,
                "premise_id": candidate.id,
                "premise": candidate.text,
                "decided_by": before.annotator,
                "decision": _WORDS[before.judgement],
                "auditor": check.annotator,
                "audit": _WORDS[check.judgement],
            }
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        return lines

    def _write(self, lines: Sequence[str]) -> None:
        if self._log is not None:
            with self._writing, naming(self._log), self._log.open("ab", buffering=0) as file:
                data, size = "".join(lines).encode(), os.fstat(file.fileno()).st_size
                try:
                    while data:
                        data = data[file.write(data) :]
                except OSError:
                    with suppress(OSError):  # a device has no size
                        file.truncate(size)  # half a line would spoil the next
                    raise

    def _is_audited(self, query: str, premise_id: str) -> bool:
        digest = hashlib.sha256("\0".join([str(self._seed), query, premise_id]).encode()).digest()
        return int.from_bytes(digest[:7], "big") / 2.0**56 < self._audit


def _open(task: Task, decided_by: Mapping[str, str]) -> list[Candidate]:
    return [candidate for candidate in task.candidates if candidate.id not in decided_by]


def _in_order(task: Task, chosen: Sequence[Candidate]) -> list[Candidate]:
    ids = {candidate.id for candidate in chosen}
    return [candidate for candidate in task.candidates if candidate.id in ids]


def _preferred(before: Verdict | None, now: Verdict) -> Verdict:
    """Returns the later verdict, except that an abstention says more than not having looked."""
    keeps = before is not None and before.judgement == ABSTAINS and now.judgement not in {*_DECIDED, ABSTAINS}
    return before if before is not None and keeps else now
