"""Steps of the trainer's default objective on one device, over made-up judgements: seconds a step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim

from benchmarks.encoder.gpu_encoders import MAX_TOKENS
from services.trainer.jobs.files import Precision
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import Example, TrainingSet
from services.trainer.models.batches import Batches
from services.trainer.models.space import SpaceSpec, pad_id_of
from services.trainer.train.data import FrozenVectors, Premises, Queries
from services.trainer.train.encoder import Encoders, load_encoder
from services.trainer.train.loop import MAX_GRADIENT_NORM, WEIGHT_DECAY, Learner
from services.trainer.train.losses import full_corpus_softmax
from services.trainer.train.objectives import CorpusObjective, LossData

WARM_UP = 5  # steps


def seconds_a_step(
    model: Path, where: str, precision: Precision, texts: Sequence[str], *, premises: int, batch_size: int
) -> float:
    """The median seconds of a step: encode, softmax over all premises, backward, clip, AdamW.

    The matrix of premises, (premises, dim) float32, is on the device.
    """
    device, rng = torch.device(where), np.random.default_rng(0)
    spec = SpaceSpec.of(model, max_tokens=MAX_TOKENS, query_prefix="", premise_prefix="")
    vectors = nn.functional.normalize(torch.from_numpy(rng.standard_normal((premises, spec.dim), np.float32)), dim=1)
    examples = [
        Example(
            text,
            positives=rng.choice(premises, 3, replace=False),
            refused=rng.choice(premises, 20, replace=False),
            **dict.fromkeys(("excluded", "contradicted", "neutral"), np.array([], dtype=np.int64)),
            grades=np.ones(3),
        )
        for text in texts
    ]
    data = TrainingSet(examples, outside=[], excluded=np.zeros(premises, dtype=bool), dropped_for={})
    batches = Batches.of(model, spec, pad_id_of(model))
    encoders = Encoders(load_encoder(model, spec).to(device))
    described = LossData(
        full_corpus_softmax,
        data,
        Queries(data, batches, "", device, pretrained=None, weight=0.0, precision=precision),
        Premises(FrozenVectors(vectors.numpy(), device=device)),
        JobConfig("made-up", (), batch_size=batch_size),
    )
    objective = CorpusObjective(described)
    learner = Learner(encoders, objective).train()
    optimizer = optim.AdamW(learner.parameters(), lr=1e-5, weight_decay=WEIGHT_DECAY)
    seconds: list[float] = []
    for units in objective.batches(rng, batch_size):
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = learner(units, units)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(learner.parameters(), MAX_GRADIENT_NORM)
        if not math.isfinite(float(loss.detach())) or not math.isfinite(
            float(norm)
        ):  # waits, as the trainer's loop does
            raise FloatingPointError(f"step {len(seconds) + 1} is not finite")
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[WARM_UP:])
