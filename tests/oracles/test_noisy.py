"""The noisy oracle: its rates, its seed, and the nonsense that it sends."""

from __future__ import annotations

import pytest

import aeenc
from aeenc import errors
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Candidate, Task, Verdict, ask
from aeenc.oracles.noisy import GARBAGE, Noise, NoisyOracle
from aeenc.v1 import oracle_pb2

CANDIDATES = tuple(Candidate(f"p{n}", f"fact {n}", n + 1, 0.5) for n in range(400))


class Even(aeenc.Oracle):
    name = "even"

    def judge(self, task: Task) -> dict[str, Verdict]:
        return {c.id: Verdict(EXPLAINS, leaf=True) if c.rank % 2 else Verdict(REFUSES) for c in task.candidates}


def task(number: int = 0) -> Task:
    return Task(f"t{number}", "run", f"query {number}", (), (), CANDIDATES)


async def judged(noise: Noise, *, seed: int = 0, number: int = 0) -> dict[str, Verdict]:
    return await ask(NoisyOracle(Even(), noise, seed=seed), task(number))


async def test_without_noise_it_says_what_the_wrapped_one_says():
    assert await judged(Noise()) == await ask(Even(), task())
    assert NoisyOracle(Even(), Noise()).name == "noisy-even"


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
async def test_verdicts_are_flipped_and_withheld_at_their_rates(rate: float):
    honest = await ask(Even(), task())
    flipped = await judged(Noise(flip=rate))
    assert sum(flipped[name].judgement != honest[name].judgement for name in honest) == pytest.approx(
        400 * rate, abs=40
    )
    assert not any(verdict.leaf for verdict in flipped.values() if verdict.judgement == REFUSES)
    withheld = await judged(Noise(abstain=rate))
    assert sum(v.judgement == ABSTAINS for v in withheld.values()) == pytest.approx(400 * rate, abs=40)
    assert all(v == honest[name] for name, v in withheld.items() if v.judgement != ABSTAINS)


async def test_a_verdict_is_the_same_however_often_it_is_asked_for_and_another_seed_gives_another():
    noise = Noise(flip=0.3, abstain=0.2)
    oracle = NoisyOracle(Even(), noise, seed=5)
    first = await ask(oracle, task())
    assert await ask(oracle, task()) == first == await judged(noise, seed=5)
    assert await judged(noise, seed=6) != first
    assert await judged(noise, seed=5, number=1) != first


async def test_failures_are_drawn_anew_at_each_attempt():
    oracle = NoisyOracle(Even(), Noise(failure=0.5), seed=1)
    ends = []
    for _ in range(100):
        try:
            await ask(oracle, task())
            ends.append(True)
        except errors.Unavailable:
            ends.append(False)
    assert 25 < sum(ends) < 75
    assert oracle.happened["failure"] == ends.count(False)


async def test_latency_is_waited_and_what_hangs_does_not_come_back(monkeypatch: pytest.MonkeyPatch):
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("aeenc.oracles.noisy.asyncio.sleep", note)
    oracle = NoisyOracle(Even(), Noise(latency_s=0.2), seed=2)
    for number in range(200):
        await ask(oracle, task(number))
    assert sum(waited) / 200 == pytest.approx(0.2, rel=0.3)
    assert 0 <= min(waited) < max(waited) <= 1.0
    waited.clear()
    await ask(NoisyOracle(Even(), Noise(hang=1.0, hang_s=77.0)), task())
    assert waited == [77.0]


@pytest.mark.parametrize("kind", sorted(GARBAGE))
def test_no_kind_of_garbage_holds_a_clear_verdict(kind: str):
    answer = oracle_pb2.Answer(task_id="t0", annotator="it")
    for name in ("p1", "p2"):
        answer.verdicts.add(premise_id=name, judgement=REFUSES)
    spoilt = GARBAGE[kind](answer)
    assert spoilt != answer
    ids = [verdict.premise_id for verdict in spoilt.verdicts]
    clear = [v for v in spoilt.verdicts if ids.count(v.premise_id) == 1 and v.judgement in {EXPLAINS, REFUSES}]
    assert spoilt.task_id != "t0" or not {"p1", "p2"} & {verdict.premise_id for verdict in clear}


@pytest.mark.parametrize("wrong", [{"flip": 1.5}, {"abstain": -0.1}, {"latency_s": -1.0}])
def test_a_rate_that_is_none_is_refused_by_name(wrong: dict[str, float]):
    with pytest.raises(errors.InvalidArgument, match=next(iter(wrong))):
        Noise(**wrong)
