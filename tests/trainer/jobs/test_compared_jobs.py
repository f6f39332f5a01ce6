"""What a job measures decides at Publish: through the RPCs, with real jobs, over a corpus that grows in between."""

from __future__ import annotations

import pytest

from aeenc import RegistryClient, values
from aeenc.v1 import types_pb2
from support.worlds.trainer_world import PAIRS, QUERIES, SIGNS, TrainerWorld

pytestmark = pytest.mark.usefixtures("forks")
PAIRS_OF_FEW = [
    types_pb2.Pair(query=pair.query, premise_id=pair.premise_id, premise=pair.premise, sign=SIGNS[pair.sign])
    for pair in PAIRS
    if pair.query in QUERIES[:19]
]


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_job_without_validation_holds_back_trees_and_says_what_it_has_gained(world: TrainerWorld):
    job = await world.trainer.wait((await world.start(epochs=2, validation=[])).id)
    assert job.error == ""
    gain = job.progress.gain
    assert (gain.version, gain.queries) == (world.space.version, 12), "half of 24 hypotheses"
    assert gain.outcome in {values.Outcome.BETTER, values.Outcome.NO_DIFFERENCE, values.Outcome.WORSE}
    assert (0 < gain.candidate_map <= 1, 0 < gain.p_better <= 1) == (True, True)
    assert (job.progress.queries, job.progress.best_validation_map) == (12, 0.0), "what is held back chooses no epoch"
    checkpoint = await world.trainer.get_checkpoint(job.version)
    assert checkpoint.validation_map == pytest.approx(gain.candidate_map)
    (compared,) = (await RegistryClient(world.trainer.channel).publish(job.version, force=False)).comparisons
    assert (compared.queries, compared.candidate_map) == (12, gain.candidate_map)
    few = await world.sampler.import_pairs(world.corpus, PAIRS_OF_FEW)
    short = await world.trainer.wait((await world.start(run_ids=[few.run_id], epochs=1, validation=[])).id)
    assert (short.progress.gain.outcome, short.progress.gain.queries) == (values.Outcome.TOO_FEW, 0)
    assert short.progress.queries == 19
    alone = await world.start(run_ids=[], data_sets=["imported"], epochs=1, validation=[])
    assert (await world.trainer.wait(alone.id)).progress.gain.outcome == values.Outcome.UNSPECIFIED
