"""An answer that is sent again is acknowledged once a replica has it, as its first attempt is."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from aeenc import errors
from aeenc.oracle import Candidate, Task
from services.sampler.people import steps
from services.sampler.people.task_store import TaskStore
from services.sampler.people.tasks import TaskRecord
from services.sampler.records.keys import RunKeys
from services.store.redis import connect
from support.servers.replicated_redis import ReplicatedRedis
from support.worlds.people_world import sent

TASK = Task("t", "run", "q", (), (), (Candidate("p1", "t1", 1, 0.9),), "v1")
KEYS = RunKeys("n")


async def test_an_answer_that_no_replica_has_is_not_acknowledged_when_it_is_sent_again(tmp_path: Path):
    pair = ReplicatedRedis(tmp_path, sentinels=0)
    url = f"redis://127.0.0.1:{pair.nodes[0].port}/0"
    patient, impatient = connect(url, replicas=1, replicas_s=10.0), connect(url, replicas=1, replicas_s=0.15)
    tasks, hasty = TaskStore(patient, KEYS), TaskStore(impatient, KEYS)

    def answer(old: TaskRecord, at: float) -> steps.Change:
        return steps.submit(old, "run.t.l", sent(seen_upto=1), 1, at)

    try:
        await patient.hset(KEYS.record("run"), "state", "RUNNING")
        await tasks.put([TaskRecord("run", TASK, 1, "majority")])
        await tasks.apply("run", "t", lambda old, _: steps.lease(old, "ann", "run.t.l", time.time(), 60.0))
        pair.nodes[1].signal(signal.SIGSTOP)
        for _ in range(3):  # the first attempt stands on the master alone, where the others find it
            with pytest.raises(errors.Unavailable, match="0 of 1 replicas"):
                await hasty.apply("run", "t", answer)
        pair.nodes[1].signal(signal.SIGCONT)
        record, answer_id = await tasks.apply("run", "t", answer)
        assert [one.answer.answer_id for one in record.answers] == [answer_id]
    finally:
        pair.nodes[1].signal(signal.SIGCONT)
        for redis in (patient, impatient):
            await redis.aclose()
        pair.stop()
