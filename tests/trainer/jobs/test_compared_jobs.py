"""What a job measures decides at Publish: through the RPCs, with real jobs, over a corpus that grows in between."""

from __future__ import annotations

from typing import Any

import pytest

from aeenc import RegistryClient, errors
from services.corpus.generation import PremiseRecord
from support.worlds.trainer_world import FACTS, QUERIES, TrainerWorld


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_worse_checkpoint_is_refused_also_after_the_corpus_was_rebuilt(world: TrainerWorld):
    registry = RegistryClient(world.trainer.channel)

    async def trained(**fields: Any) -> str:
        job = await world.trainer.wait((await world.start(**fields)).id)
        assert job.error == ""
        return job.version

    serving = await trained(epochs=6, validation=[])  # has learnt from all queries
    assert "without validation queries" in (await registry.publish(serving)).gate.not_compared
    texts = [*FACTS, "a new fact"]
    world.space.build(world.corpus, [PremiseRecord(f"f{n}", text, splits=("train",)) for n, text in enumerate(texts)])
    gold = [(query, (FACTS[n],)) for n, query in enumerate(QUERIES[:16])]
    worse = await trained(epochs=1, learning_rate=1e-6, validation=gold)
    with pytest.raises(errors.FailedPrecondition, match=rf"the serving {serving} .* same 16 queries") as caught:
        await registry.publish(worse)
    assert caught.value.reason == "QUALITY_GATE"
    assert (await registry.publish(worse, force=True)).gate.not_compared == "it was forced"
