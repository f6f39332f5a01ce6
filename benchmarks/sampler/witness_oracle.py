"""A gold oracle that writes down what it is asked and when, and takes its time.

`witness_oracle.py TREES SPLIT PORT LOG SECONDS`, seconds being those that an answer takes.

A line is written before a verdict is given, by one `write` to a file opened for appending: SIGKILL tears none.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from aeenc.oracle import Answer, Task, Verdict
from aeenc.oracles.gold import GoldOracle
from aeenc.trees import Dataset


class WitnessOracle(GoldOracle):
    """Answers as gold does, after `delay_s`."""

    def __init__(self, dataset: Dataset, split: str, log: Path, delay_s: float) -> None:
        super().__init__(dataset, split)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._delay_s = delay_s

    async def judge(self, task: Task) -> dict[str, Verdict] | Answer[dict[str, Verdict]]:  # type: ignore[override]
        """Writes the question down, then answers."""
        asked = [task.run_id, time.time(), task.query, [candidate.text for candidate in task.candidates]]
        os.write(self._log, (json.dumps(asked) + "\n").encode())
        await asyncio.sleep(self._delay_s)
        return super().judge(task)


def asked_at(log: Path, run_id: str) -> dict[tuple[str, str], list[float]]:
    """When a run asked for each (query, premise), in seconds since the epoch."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in log.read_text().splitlines():
        run, at, query, premises = json.loads(line)
        if run == run_id:
            for premise in premises:
                times[query, premise].append(at)
    return times


if __name__ == "__main__":
    trees, split, port, log, delay_s = sys.argv[1:]
    WitnessOracle(Dataset.load(trees), split, Path(log), float(delay_s)).serve(f"127.0.0.1:{port}")
