"""Where a job goes on after its process was killed: weights, optimiser moments and the best epoch, one file an epoch.

Safetensors and JSON, never pickle. Everything random is seeded by epoch, so no generator state needs keeping.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn, optim

from aeenc.errors import FailedPrecondition
from services.store.artifacts import atomic_write

FORMAT_VERSION = 2  # 1 had no head, and no number
FILE = "epoch.safetensors"
BEST, BEST_PREMISES = "best.safetensors", "best_premises.safetensors"  # the second in mode DUAL alone


@dataclass
class TrainingState:
    """How far the training is, apart from tensors. `best_epoch` is 0 before the first epoch has ended, never after."""

    epochs_done: int = 0
    steps_done: int = 0
    validation_map: float = 0.0
    best_map: float = 0.0
    best_epoch: int = 0


def save_state(directory: Path, standing: TrainingState, learner: nn.Module, optimizer: optim.Optimizer) -> None:
    """Replaces the state as a whole; tensors and standing are in one file, so they cannot disagree."""
    tensors = {f"weights/{name}": tensor for name, tensor in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}/{name}"] = value
    metadata = {"format_version": str(FORMAT_VERSION), "standing": json.dumps(asdict(standing))}
    _save(directory / FILE, tensors, metadata)


def load_state(directory: Path, learner: nn.Module, optimizer: optim.Optimizer) -> TrainingState:
    """Puts weights and moments back; a fresh standing when there is no state.

    Raises FailedPrecondition for a state that another version of the trainer wrote.
    """
    path = directory / FILE
    if not path.is_file():
        return TrainingState()
    parameters = dict(learner.named_parameters())
    with safe_open(path, framework="pt") as state:
        if state.metadata().get("format_version") != str(FORMAT_VERSION):
            raise FailedPrecondition(f"{path} was written by another version of the trainer; start a new job")
        standing = TrainingState(**json.loads(state.metadata()["standing"]))
        weights = {}
        for key in state.keys():  # noqa: SIM118 - it is no mapping
            kind, name = key.split("/", 1)
            if kind == "weights":
                weights[name] = state.get_tensor(key)
            else:
                device = "cpu" if kind == "step" else parameters[name].device  # AdamW counts steps on the CPU
                optimizer.state[parameters[name]][kind] = state.get_tensor(key).to(device)
    learner.load_state_dict(weights)
    return standing


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Replaces a file of weights as a whole."""
    _save(path, weights, None)


def _save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
    # Through bytes: the library's own writer hides a full disk behind an error of its own.
    atomic_write(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata))
