"""Services around a running trainer: a sampler with imported pairs, an encoder, and jobs over them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aeenc import Channel, EncoderClient, SamplerClient, TrainerClient
from aeenc.v1 import types_pb2
from services.encoder.__main__ import build as build_encoder
from services.encoder.settings import EncoderSettings
from services.kit.server import GrpcServer
from services.sampler.__main__ import build as build_sampler
from services.sampler.settings import SamplerSettings
from support.worlds.trainer_world import FACTS, PAIRS, QUERIES, VALIDATION, Space, serve_trainer

SIGNS = {"POSITIVE": types_pb2.PAIR_SIGN_POSITIVE, "NEGATIVE": types_pb2.PAIR_SIGN_NEGATIVE}


@dataclass
class World:
    trainer: TrainerClient
    trainer_server: GrpcServer
    sampler: SamplerClient
    encoder: EncoderClient
    space: Space
    corpus: str
    run_id: str

    def start(self, **fields: Any) -> Any:
        """Starts a job over the imported pairs."""
        validation = [(query.text, query.gold) for query in VALIDATION]
        options = {"corpus": self.corpus, "run_ids": [self.run_id], "split": "train", "learning_rate": 1e-3}
        return self.trainer.start_job(**{"validation": validation, **options, **fields})


@pytest.fixture
async def world(space: Space, corpus: str, redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[World]:
    imported = tmp_path / "imported.jsonl"
    common = {"port": 0, "redis_url": redis_url, "namespace": namespace, "poll_s": 0.1}
    async with AsyncExitStack() as stack:
        sampler_server = await stack.enter_async_context(build_sampler(SamplerSettings(**common)))
        sampler = SamplerClient(Channel(f"127.0.0.1:{sampler_server.port}", timeout_s=10))
        stack.push_async_callback(sampler.channel.close)
        encoder_options = {**common, "artifacts_dir": space.store.root, "state_dir": tmp_path / "encoder", "workers": 1}
        encoder_server = await stack.enter_async_context(build_encoder(EncoderSettings(**encoder_options)))
        encoder = EncoderClient(Channel(f"127.0.0.1:{encoder_server.port}", timeout_s=10))
        stack.push_async_callback(encoder.channel.close)
        targets = {
            "sampler_target": f"127.0.0.1:{sampler_server.port}",
            "encoder_target": f"127.0.0.1:{encoder_server.port}",
        }
        trainer_server, trainer = await stack.enter_async_context(
            serve_trainer(
                space,
                redis_url,
                namespace,
                tmp_path / "trainer",
                **targets,
                data_sets={"imported": imported},
                tensorboard_dir=str(tmp_path / "curves"),
            )
        )
        imported.write_text(json.dumps({"query": QUERIES[9], "positive": FACTS[9], "negative": FACTS[10]}) + "\n")
        pairs = [
            types_pb2.Pair(query=pair.query, premise_id=pair.premise_id, premise=pair.premise, sign=SIGNS[pair.sign])
            for pair in PAIRS
        ]
        run_id = (await sampler.import_pairs(corpus, pairs)).run_id
        yield World(trainer, trainer_server, sampler, encoder, space, corpus, run_id)
