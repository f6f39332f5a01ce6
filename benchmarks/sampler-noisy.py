"""A sampling run against an oracle that hangs, abstains and talks nonsense. `make bench NAME=sampler-noisy`.

Needs EntailmentBank in `../shared/data/entailmentbank` or in AEENC_BENCH_DATA. Three minutes.
"""

from __future__ import annotations

import argparse

from aeenc.v1 import types_pb2
from harness.baselines import run
from harness.checkpoints import STORE, base_checkpoint
from harness.encoder_fleet import running_encoder
from harness.index_fleet import running_index
from harness.int8 import entailmentbank
from harness.noisy import HYPOTHESES, noisy
from harness.rows import Rows
from services.kit.artifacts import ArtifactStore

CORPUS = "entailmentbank"


async def main(count: int) -> None:
    """Builds the corpus and runs it."""
    dataset, store = entailmentbank(), ArtifactStore(STORE)
    rows = Rows("sampler-noisy")
    async with (
        running_encoder(store, base_checkpoint(store)) as encoder,
        running_index(encoder_target=encoder.target) as index,
    ):
        client = index.client(timeout_s=600.0)
        premises = [types_pb2.Premise(id=one.id, text=one.text, splits=one.splits) for one in dataset.candidates()]
        await client.build(CORPUS, premises)
        await client.channel.close()
        await noisy(rows, index.target, CORPUS, dataset, count=count)
    rows.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=HYPOTHESES, help="hypotheses of the run")
    run(main(parser.parse_args().trees))
