"""The training loop: epochs in random order, the best one kept by strict MAP, resumable after each.

    discard_if_damaged
        ▼
    load_state ──► epoch: batches ──► each rank's share: loss, backward ──► clip ──► AdamW step
        ▲                                                                              │ next batch
        │                                                                              ▼
    save_state ◄── BEST weights, if better ◄── validate ◄── KeptWeights in place ◄── end of epoch

The same plan and inputs give the same weights on the same machine, even if the process was killed in between.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn, optim

from services.trainer.jobs.files import TrainingPlan
from services.trainer.jobs.job import JobConfig
from services.trainer.learning.loop.epoch_state import (
    BEST,
    BEST_PREMISES,
    TrainingState,
    discard_if_damaged,
    load_state,
    save_state,
    save_weights,
    settle_weights,
)
from services.trainer.learning.loop.ranks import Rank
from services.trainer.learning.loss.objective import Objective
from services.trainer.learning.query_encoder import Encoders

WEIGHT_DECAY = 0.01
WARM_UP = 0.1  # share of all steps
MAX_GRADIENT_NORM = 1.0
TELL_S = 0.5
USUAL_STEPS = 1_000  # nine epochs of EntailmentBank's train split; the table of results has eight
FEWEST_EPOCHS, MOST_EPOCHS = 3, 12


class Diverged(Exception):
    """Stops training because the loss is not finite. `state` is the last good one; this epoch is lost."""

    def __init__(self, reason: str, state: TrainingState | None = None) -> None:
        super().__init__(reason)
        self.state = state or TrainingState()


@dataclass(frozen=True)
class Step:
    """A report of the loop. `loss` is the mean since the report before."""

    phase: str
    state: TrainingState
    steps_done: int
    steps: int
    loss: float
    remaining_s: float


class Learner(nn.Module):
    """Everything that the optimiser moves: the encoders, each once, and the objective's head."""

    def __init__(self, encoders: Encoders[Any], objective: Objective) -> None:
        super().__init__()
        self.encoder, self.premise_encoder, self.head = encoders.query, encoders.second, objective.head
        self._encoders, self._objective = encoders, objective

    def forward(self, units: NDArray[np.int64], whole: NDArray[np.int64]) -> Tensor:
        """Computes what some units add to the loss of their batch, a scalar."""
        return self._objective.loss(self._encoders, units, whole)


class Training:
    """One run of the loop. `validate` measures the strict MAP of the encoders; None keeps the last epoch."""

    def __init__(
        self,
        plan: TrainingPlan,
        encoders: Encoders[Any],
        objective: Objective,
        validate: Callable[[], float] | None,
        directory: Path,
        tell: Callable[[Step], None],
        rank: Rank = Rank(),  # noqa: B008 - frozen
    ) -> None:
        self._config, self._encoders, self._objective = plan.config, encoders, objective
        self._validate, self._directory, self._tell, self._rank = validate, directory, tell, rank
        self._learner = Learner(encoders, objective)
        self._optimizer = optim.AdamW(
            self._learner.parameters(), lr=self._config.learning_rate, weight_decay=WEIGHT_DECAY
        )
        self._kept = KeptWeights(encoders, self._config.initial_share)
        self._loss = 0.0
        self._steps = _steps_per_epoch(self._config, objective.size) * self._config.epochs

    def run(self) -> TrainingState:
        """Trains the epochs that are left; the best weights then lie in the files of `BEST`. Raises Diverged."""
        if self._rank.leads:
            discard_if_damaged(self._directory)
        self._rank.meet()
        state = load_state(self._directory, self._learner, self._optimizer)
        if self._rank.leads:
            settle_weights(self._directory, state)
        wrapped = self._rank.wrap(self._learner)
        for epoch in range(state.epochs_done + 1, self._config.epochs + 1):
            try:
                state.steps_done = self._epoch(wrapped, epoch, state)
            except Diverged as error:
                raise Diverged(f"{error} (epoch {epoch} of {self._config.epochs})", state) from None
            if self._rank.leads:
                self._keep(epoch, state)
            self._rank.meet()
        self._say("exporting", state, state.steps_done, 0.0)
        return state

    def _keep(self, epoch: int, state: TrainingState) -> None:
        self._say("evaluating", state, state.steps_done, 0.0)
        with self._kept.in_place():
            state.validation_map = self._validate() if self._validate else 0.0
            is_best = self._validate is None or state.best_epoch == 0 or state.validation_map > state.best_map
            if is_best:
                state.best_epoch, state.best_map = epoch, state.validation_map
                if self._encoders.second is not None:
                    save_weights(self._directory / BEST_PREMISES, self._encoders.second.transformer.state_dict(), epoch)
                save_weights(self._directory / BEST, self._encoders.query.transformer.state_dict(), epoch)
        state.epochs_done = epoch
        save_state(self._directory, state, self._learner, self._optimizer)
        settle_weights(self._directory, state)

    def _epoch(self, learner: nn.Module, epoch: int, state: TrainingState) -> int:
        """Takes the steps of an epoch and returns the number of steps so far."""
        seed = self._config.seed + 1_000_003 * epoch + 7_919 * self._rank.number
        torch.manual_seed(seed % 2**63)
        generator = np.random.default_rng([self._config.seed, epoch])
        self._learner.train()
        losses: list[float] = []
        done, started, told_at = state.steps_done, time.monotonic(), 0.0
        for units in self._objective.batches(generator, self._config.batch_size):
            losses.append(self._step(learner, units, done))
            done += 1
            now = time.monotonic()
            if now - told_at >= TELL_S:
                pace_s = (now - started) / (done - state.steps_done)
                self._loss, losses, told_at = float(np.mean(losses)), [], now
                self._say("training", state, done, pace_s * (self._steps - done))
        return done

    def _step(self, learner: nn.Module, units: NDArray[np.int64], done: int) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * schedule(done, self._steps)
        self._optimizer.zero_grad(set_to_none=True)
        parts = np.array_split(units, min(self._config.accumulation, len(units)))
        value = 0.0
        for number, part in enumerate(parts, start=1):
            own, weight = self._rank.share(part)
            with _without_gradient_sync(learner) if number < len(parts) else contextlib.nullcontext():
                loss = learner(own, units) * weight
                loss.backward()
            value += float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(f"the loss became {value} at step {done + 1} of {self._steps}; lower the learning rate")
        norm = float(nn.utils.clip_grad_norm_(self._learner.parameters(), MAX_GRADIENT_NORM))
        if not math.isfinite(norm):
            raise Diverged(f"the gradient became {norm} at step {done + 1} of {self._steps}; lower the learning rate")
        self._optimizer.step()
        return value

    def _say(self, phase: str, state: TrainingState, done: int, remaining_s: float) -> None:
        if self._rank.leads:
            self._tell(Step(phase, state, done, self._steps, self._loss, remaining_s))


def usual_epochs(config: JobConfig, size: int) -> int:
    """Chooses the epochs over so many queries or items: few data need more passes for as many steps."""
    wanted = -(-USUAL_STEPS // _steps_per_epoch(config, size))
    return min(max(wanted, FEWEST_EPOCHS), MOST_EPOCHS)


def _steps_per_epoch(config: JobConfig, size: int) -> int:
    return -(-min(size, config.items_per_epoch or size) // config.batch_size)


def schedule(step: int, steps: int) -> float:
    """Returns the share of the peak learning rate at a step, from 0: linear warm-up, then linear decay to 0."""
    warm_up = max(1.0, WARM_UP * steps)
    return min((step + 1) / warm_up, (steps - step) / max(1.0, steps - warm_up), 1.0)


def _without_gradient_sync(learner: nn.Module) -> Any:
    """Sums gradients up without averaging them over processes: the last part of a batch does that for all."""
    if isinstance(learner, nn.parallel.DistributedDataParallel):
        return learner.no_sync()
    return contextlib.nullcontext()


class KeptWeights:
    """The weights kept of an epoch: trained ones with a share of the initial ones. Create it before training.

    A mixture is often better than either on texts unlike those of training (Wortsman et al. 2022, "Robust fine-tuning
    of zero-shot models").
    """

    def __init__(self, encoders: Encoders[Any], share: float) -> None:
        """`share` is that of the initial weights, from 0 to 1."""
        trained = [encoders.query, *([encoders.second] if encoders.second is not None else [])]
        self._weights = [weight for encoder in trained for weight in encoder.parameters()] if share else []
        self._initial = [weight.detach().clone() for weight in self._weights]
        self._share = share

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Gives the encoders the kept weights within the block, and the trained ones again after it."""
        trained = [weight.detach().clone() for weight in self._weights]
        with torch.no_grad():
            for weight, initial in zip(self._weights, self._initial, strict=True):
                weight.lerp_(initial, self._share)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, before in zip(self._weights, trained, strict=True):
                    weight.copy_(before)
