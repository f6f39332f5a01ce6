"""The training loop: epochs in random order, the best one by strict MAP, resumable after each.

The same plan and inputs give the same weights on the same machine, whether or not the process was killed in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import optim

from services.trainer.job_files import TrainingPlan
from services.trainer.learning.epoch_state import (
    BEST,
    Standing,
    load_standing,
    save_standing,
    save_weights,
)
from services.trainer.learning.objective import Objective
from services.trainer.learning.query_encoder import QueryEncoder

WEIGHT_DECAY = 0.01
WARM_UP = 0.1  # share of all steps
MAX_GRADIENT_NORM = 1.0
TELL_S = 0.5


class Diverged(Exception):
    """The loss is not finite; nothing of this epoch is kept."""


@dataclass(frozen=True)
class Step:
    """What the loop tells while it works. `loss` is the mean since the last time."""

    phase: str
    standing: Standing
    steps_done: int
    steps: int
    loss: float
    remaining_s: float


class Training:
    """One run of the loop. `validate` gives the strict MAP of the encoder as it is; None: the last epoch is kept."""

    def __init__(
        self,
        plan: TrainingPlan,
        encoder: QueryEncoder,
        objective: Objective,
        validate: Callable[[], float] | None,
        directory: Path,
        tell: Callable[[Step], None],
    ) -> None:
        self._plan, self._encoder, self._objective = plan, encoder, objective
        self._validate, self._directory, self._tell = validate, directory, tell
        self._optimizer = optim.AdamW(encoder.parameters(), lr=plan.config.learning_rate, weight_decay=WEIGHT_DECAY)
        self._loss = 0.0
        self._steps = -(-objective.size // plan.config.batch_size) * plan.config.epochs

    def run(self) -> Standing:
        """Trains what is left to train; the weights to keep then lie in `best.safetensors`. Raises Diverged."""
        standing = load_standing(self._directory, self._encoder, self._optimizer)
        for epoch in range(standing.epochs_done + 1, self._plan.config.epochs + 1):
            self._epoch(epoch, standing)
            self._say("evaluating", standing, standing.steps_done, 0.0)
            standing.validation_map = self._validate() if self._validate else 0.0
            if self._validate is None or standing.best_epoch == 0 or standing.validation_map > standing.best_map:
                standing.best_epoch, standing.best_map = epoch, standing.validation_map
                save_weights(self._directory / BEST, self._encoder.transformer.state_dict())
            standing.epochs_done = epoch
            save_standing(self._directory, standing, self._encoder, self._optimizer)
        self._say("exporting", standing, standing.steps_done, 0.0)
        return standing

    def _epoch(self, epoch: int, standing: Standing) -> None:
        torch.manual_seed((self._plan.config.seed + 1_000_003 * epoch) % 2**63)
        generator = np.random.default_rng([self._plan.config.seed, epoch])
        self._encoder.train()
        losses: list[float] = []
        done, started, told_at = standing.steps_done, time.monotonic(), 0.0
        for items in self._objective.batches(generator, self._plan.config.batch_size):
            losses.append(self._step(items, done))
            done += 1
            now = time.monotonic()
            if now - told_at >= TELL_S:
                pace_s = (now - started) / (done - standing.steps_done)
                self._loss, losses, told_at = float(np.mean(losses)), [], now
                self._say("training", standing, done, pace_s * (self._steps - done))
        standing.steps_done = done

    def _step(self, items: NDArray[np.int64], done: int) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.config.learning_rate * schedule(done, self._steps)
        loss = self._objective.loss(self._encoder, items)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(f"the loss became {value} at step {done + 1}; lower the learning rate")
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._encoder.parameters(), MAX_GRADIENT_NORM)
        if not math.isfinite(norm):
            raise Diverged(f"the gradient became {norm} at step {done + 1}; lower the learning rate")
        self._optimizer.step()
        return value

    def _say(self, phase: str, standing: Standing, done: int, remaining_s: float) -> None:
        self._tell(Step(phase, standing, done, self._steps, self._loss, remaining_s))


def schedule(step: int, steps: int) -> float:
    """The share of the peak learning rate at a step, from 0: linear warm-up, then linear decay to 0."""
    warm_up = max(1.0, WARM_UP * steps)
    return min((step + 1) / warm_up, (steps - step) / max(1.0, steps - warm_up), 1.0)
