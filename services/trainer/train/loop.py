"""The training loop: epochs in random order, the best one on the validation kept, resumable after each.

    load_state ──► epoch: batches ──► each rank's share: loss, backward ──► clip ──► AdamW step
        ▲                                                                              │ next batch
        │                                                                              ▼
    save_state ◄── best weights, if better ◄── validate ◄── KeptWeights in place ◄── end of epoch

The same plan and inputs give the same weights on the same machine, even if the process was killed in between. A killed
job resumes from one file with weights, optimiser moments and the best epoch's weights: safetensors and JSON, never
pickle. Randomness is seeded by epoch, so no generator state is kept. The file has the hash of its content, so that a
damaged one is told from a sound one. From the first batch on that is over the device's memory, batches are computed in
twice as many parts, if their gradients add up. That is not saved: if such a job is killed, its weights may differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel

from aeenc.errors import FailedPrecondition
from services.devices import free_cached_blocks, is_out_of_memory
from services.kit.logs import get
from services.store.files import atomic_write
from services.store.formats import check_format, made_of
from services.trainer.jobs.files import EPOCH_STATE, TrainingPlan
from services.trainer.jobs.job import JobConfig, JobProgress
from services.trainer.train.data import Objective
from services.trainer.train.encoder import Encoders
from services.trainer.train.ranks import Rank

log = get(__name__)

FORMAT_VERSION = 1
BEST, BEST_PREMISES = "best", "best_premises"  # before the names of the best epoch's weights; the second in mode DUAL
HASH = "sha256"  # of the tensors and of the other metadata, beside them
WEIGHT_DECAY = 0.01
WARM_UP = 0.1  # share of all steps
MAX_GRADIENT_NORM = 1.0
TELL_S = 0.5
USUAL_STEPS = 1_000  # nine epochs of EntailmentBank's train split; the table of results has eight
FEWEST_EPOCHS, MOST_EPOCHS = 3, 12


@dataclass
class TrainingState:
    """How far training has come, apart from tensors. `best_epoch` is 0 until the first epoch has ended, never later.

    `best_quality` is what the best epoch has most of.
    """

    epochs_done: int = 0
    steps_done: int = 0
    validation_map: float = 0.0
    best_map: float = 0.0
    best_epoch: int = 0
    best_quality: float = 0.0


class Diverged(Exception):
    """Stops training because the loss is not finite. `state` is the last good one; this epoch is lost."""

    def __init__(self, reason: str, state: TrainingState | None = None) -> None:
        super().__init__(reason)
        self.state = state or TrainingState()


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
    """One run of the loop. `validate` measures the encoders; None keeps the last epoch.

    It returns their strict MAP, and the quality by which the best epoch is kept. The loss that `tell` gets is the mean
    since the report before.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        encoders: Encoders[Any],
        objective: Objective,
        validate: Callable[[], tuple[float, float]] | None,
        directory: Path,
        tell: Callable[[JobProgress], None],
        rank: Rank = Rank(),  # noqa: B008 - frozen
    ) -> None:
        self._config, self._encoders, self._objective = plan.config, encoders, objective
        self._parts = self._config.accumulation
        adds_up = plan.loss.adds_up(self._config.mode, self._config.batching, self._config.regularization)
        self._divides = adds_up and rank.processes == 1  # the others would wait for its gradients
        self._validate, self._directory, self._tell, self._rank = validate, directory, tell, rank
        self._learner = Learner(encoders, objective)
        self._optimizer = optim.AdamW(
            self._learner.parameters(), lr=self._config.learning_rate, weight_decay=WEIGHT_DECAY
        )
        self._kept = KeptWeights(encoders, self._config.initial_share)
        self._best: dict[str, Tensor] = {}
        self._loss = 0.0
        self._steps = _steps_per_epoch(self._config, objective.size) * self._config.epochs

    def run(self) -> TrainingState:
        """Trains the epochs that are left; `best_weights` then reads the best ones. Raises Diverged."""
        state, self._best = load_state(self._directory, self._learner, self._optimizer)
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
            state.validation_map, quality = self._validate() if self._validate else (0.0, 0.0)
            if self._validate is None or state.best_epoch == 0 or quality > state.best_quality:
                state.best_epoch, state.best_map, state.best_quality = epoch, state.validation_map, quality
                self._best = {
                    f"{part}/{name}": weight.detach().cpu().clone()
                    for part, model in ((BEST, self._encoders.query), (BEST_PREMISES, self._encoders.second))
                    if model is not None
                    for name, weight in model.transformer.state_dict().items()
                }
        state.epochs_done = epoch
        save_state(self._directory, state, self._learner, self._optimizer, self._best)

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
        self._loss = float(np.mean(losses)) if losses else self._loss  # of the steps since the last report
        return done

    def _step(self, learner: nn.Module, units: NDArray[np.int64], done: int) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * schedule(done, self._steps)
        while (value := self._add_gradients(learner, units, done)) is None:
            free_cached_blocks()
            self._parts *= 2
        if not math.isfinite(value):
            raise Diverged(f"the loss became {value} at step {done + 1} of {self._steps}; lower the learning rate")
        norm = float(nn.utils.clip_grad_norm_(self._learner.parameters(), MAX_GRADIENT_NORM))
        if not math.isfinite(norm):
            raise Diverged(f"the gradient became {norm} at step {done + 1} of {self._steps}; lower the learning rate")
        self._optimizer.step()
        return value

    def _add_gradients(self, learner: nn.Module, units: NDArray[np.int64], done: int) -> float | None:
        """Computes a batch's gradients and returns its loss; None where half of each part might be within memory.

        Raises FailedPrecondition where no smaller part may be computed.
        """
        self._optimizer.zero_grad(set_to_none=True)
        parts = np.array_split(units, min(self._parts, len(units)))
        value = 0.0
        try:
            for number, part in enumerate(parts, start=1):
                own, weight = self._rank.share(part)
                # Of several processes, the last part averages the gradients that all parts have added up.
                adds_up = isinstance(learner, DistributedDataParallel) and number < len(parts)
                with cast("DistributedDataParallel", learner).no_sync() if adds_up else contextlib.nullcontext():
                    loss = learner(own, units) * weight
                    loss.backward()
                value += float(loss.detach())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if not self._divides or len(parts) == len(units):
                raise FailedPrecondition(
                    f"a batch of {len(units)} in {len(parts)} parts is over the device's memory at step {done + 1} of "
                    f"{self._steps} ({str(error)[:200]}); start a new job with a lower batch_size or a higher "
                    "accumulation, or raise AEENC_TRAINER_GPU_BYTES where that bounds it"
                ) from error
            log.warning(
                "a batch is over the device's memory", units=len(units), parts=len(parts), reason=str(error)[:200]
            )
            return None
        return value

    def _say(self, phase: str, state: TrainingState, done: int, remaining_s: float) -> None:
        if self._rank.leads:
            self._tell(
                JobProgress(
                    phase,
                    epochs_done=state.epochs_done,
                    epochs=self._config.epochs,
                    steps_done=done,
                    steps=self._steps,
                    loss=self._loss,
                    validation_map=state.validation_map,
                    best_validation_map=state.best_map,
                    remaining_s=remaining_s,
                )
            )


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


def save_state(
    directory: Path,
    state: TrainingState,
    learner: nn.Module,
    optimizer: optim.Optimizer,
    best: Mapping[str, Tensor],
) -> None:
    """Replaces the state atomically; tensors and values share a file, so they cannot disagree."""
    tensors = {f"weights/{name}": tensor for name, tensor in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}/{name}"] = value
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in {**tensors, **best}.items()}
    metadata = {"format_version": str(FORMAT_VERSION), "standing": json.dumps(asdict(state))}
    # Through bytes: the library's writer hides a full disk behind its own error class.
    atomic_write(directory / EPOCH_STATE, save(plain, {**metadata, HASH: _hash(plain, metadata)}))


def load_state(
    directory: Path, learner: nn.Module, optimizer: optim.Optimizer
) -> tuple[TrainingState, dict[str, Tensor]]:
    """Restores weights and moments; returns the state and the best weights.

    Fresh ones if nothing is stored, or something damaged: the job begins again. Raises NewerFormat for a state of a
    newer release, whose hash may be another.
    """
    tensors, metadata = _sound(directory / EPOCH_STATE)
    if not tensors:
        return TrainingState(), {}
    parameters = dict(learner.named_parameters())
    weights, best = {}, {}
    for key, tensor in tensors.items():
        kind, name = key.split("/", 1)
        if kind == "weights":
            weights[name] = tensor
        elif kind in {BEST, BEST_PREMISES}:
            best[key] = tensor
        else:
            device = "cpu" if kind == "step" else parameters[name].device  # AdamW counts steps on the CPU
            optimizer.state[parameters[name]][kind] = tensor.to(device)
    learner.load_state_dict(weights)
    return made_of(TrainingState, json.loads(metadata["standing"])), best


def best_weights(directory: Path, part: str = BEST) -> dict[str, Tensor]:
    """Reads the weights of the best epoch from a job's directory."""
    with safe_open(directory / EPOCH_STATE, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(f"{part}/")]  # noqa: SIM118 - not a mapping
        return {name.removeprefix(f"{part}/"): file.get_tensor(name) for name in names}


def _sound(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads a file's tensors and what it says beside them; nothing unless they have the hash written with them."""
    if not path.is_file():
        return {}, {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            check_format(metadata, FORMAT_VERSION, str(path))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.pop(HASH, "") == _hash(tensors, metadata):
            return tensors, metadata
    except (SafetensorError, ValueError, KeyError):
        pass
    log.warning("a job's state is damaged; it begins again from its first epoch", path=str(path))
    return {}, {}


def _hash(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
