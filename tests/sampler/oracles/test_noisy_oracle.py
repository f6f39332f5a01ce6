"""A run against an oracle that hangs, abstains, fails and talks nonsense: it finishes, without false negatives."""

from __future__ import annotations

import pytest

import aeenc
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Task, Verdict
from aeenc.v1 import oracle_pb2, types_pb2
from support.servers.noisy_oracle import GARBAGE, Noise, NoisyOracle
from support.worlds.sampler_world import E_, SamplerWorld, brute_force, explains, finish, is_leaf, pair_set


class Honest(aeenc.Oracle):
    """Knows what explains what in the small world."""

    name = "honest"

    def judge(self, task: Task) -> dict[str, Verdict]:
        return {
            c.id: Verdict(E_, leaf=is_leaf(c.text)) if explains(task.query, c.text) else Verdict(REFUSES)
            for c in task.candidates
        }


class Recorded(NoisyOracle):
    """Keeps the answers that it has sent."""

    def __init__(self, noise: Noise, seed: int) -> None:
        super().__init__(Honest(), noise, seed=seed)
        self.answers: list[tuple[Task, oracle_pb2.Answer]] = []

    def sent(self, task: Task, answer: oracle_pb2.Answer) -> oracle_pb2.Answer:
        self.answers.append((task, super().sent(task, answer)))
        return self.answers[-1][1]

    def said(self, judgement: int) -> set[tuple[str, str]]:
        """(query, premise) judged so in an answer to its task, once and nothing else."""
        found = set()
        for task, answer in self.answers:
            given = [(v.premise_id, v.judgement) for v in answer.verdicts]
            ids = [premise_id for premise_id, _ in given]
            if answer.task_id == task.task_id:
                found |= {
                    (task.query, candidate.text)
                    for candidate in task.candidates
                    if ids.count(candidate.id) == 1 and (candidate.id, judgement) in given
                }
        return found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
async def test_timeouts_abstentions_and_garbage_become_no_negatives_and_the_run_finishes(
    world: SamplerWorld, seed: int
):
    oracle = Recorded(Noise(hang=0.1, abstain=0.1, garbage=0.05, failure=0.05), seed)
    server = await oracle.start()
    settings = {"target": f"127.0.0.1:{server.port}", "timeout_s": 0.5, "patience_s": 60.0, "max_attempts": 6}
    async with world.sampler(oracle=settings) as client:
        run = await finish(client)
        recorded = await pair_set(client, run.id)
        skipped = await pair_set(client, run.id, "?")
    await server.stop(0)
    assert run.state == types_pb2.WORK_STATE_SUCCEEDED
    assert run.progress.trees_done == run.progress.trees
    assert min(oracle.happened[what] for what in ("hang", "abstain", "garbage", "failure")) > 0
    assert {(query, premise) for query, premise, sign in recorded if sign == "-"} <= oracle.said(REFUSES)
    assert {(query, premise) for query, premise, sign in recorded if sign == "+"} <= oracle.said(EXPLAINS)
    assert all(explains(query, premise) is (sign == "+") for query, premise, sign in recorded)
    abstained = oracle.said(ABSTAINS)
    assert abstained & {(query, premise) for query, premise, _ in skipped}
    assert not abstained & {(query, premise) for query, premise, _ in recorded}


@pytest.mark.parametrize("kind", sorted(GARBAGE))
async def test_no_kind_of_garbage_becomes_a_pair(world: SamplerWorld, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("support.servers.noisy_oracle.GARBAGE", {kind: GARBAGE[kind]})
    server = await NoisyOracle(Honest(), Noise(garbage=1.0)).start()
    async with world.sampler(oracle={"target": f"127.0.0.1:{server.port}"}) as client:
        run = await finish(client)
        assert await pair_set(client, run.id) == set()
    await server.stop(0)


async def test_a_noisy_oracle_without_noise_changes_nothing(world: SamplerWorld):
    server = await NoisyOracle(Honest(), Noise()).start()
    async with world.sampler(oracle={"target": f"127.0.0.1:{server.port}"}) as client:
        run = await finish(client)
        assert await pair_set(client, run.id) == brute_force()
    await server.stop(0)
