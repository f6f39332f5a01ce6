"""Jobs that wait for a service that is away, by a clock of the test's own."""

from __future__ import annotations

import pytest

from services.kit.readiness import Readiness
from services.trainer.jobs import runner
from services.trainer.jobs.runner import LONGEST_S, Backoff


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be moved."""
    clock = [100.0]
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock[0])
    return clock


def test_a_job_is_tried_after_pauses_that_grow_up_to_a_limit(now: list[float]):
    jobs = Backoff(Readiness())
    pauses = []
    for _ in range(8):
        pauses.append(jobs.postpone("a", "away"))
        now[0] += pauses[-1] - 0.01
        assert not jobs.is_due("a")
        now[0] += 0.02
        assert jobs.is_due("a")
    assert pauses == [1, 2, 4, 8, 16, 30, 30, LONGEST_S]
    jobs.clear("a")
    assert jobs.postpone("a", "away again") == 1


def test_whoever_starts_or_resumes_a_job_has_all_of_them_tried_at_once(now: list[float]):
    jobs = Backoff(Readiness())
    jobs.postpone("a", "away")
    jobs.make_all_due()
    assert jobs.is_due("a")
    assert jobs.postpone("a", "away") == 2, "but the pauses go on growing"


def test_the_readiness_says_why_a_job_waits_until_it_does_no_more(now: list[float]):
    readiness = Readiness()
    jobs = Backoff(readiness)
    jobs.postpone("a", "no sampler")
    jobs.postpone("b", "no index")
    assert (readiness.state, readiness.reason) == ("DEGRADED", "job a waits: no sampler")
    jobs.clear("a")
    assert readiness.reason == "job b waits: no index"
    jobs.keep_only(["c"])
    assert readiness.state == "SERVING"
    jobs.handicap = "the base model is of a newer release"
    jobs.report()
    assert (readiness.state, readiness.reason) == ("DEGRADED", jobs.handicap)
