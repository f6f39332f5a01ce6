"""The state from which a killed job resumes: weights, optimiser moments and the best epoch, in one file.

It is safetensors and JSON, never pickle. Randomness is seeded by epoch, so no generator state is kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn, optim

from aeenc.errors import FailedPrecondition
from services.store.artifacts import atomic_write, sync_directory

FORMAT_VERSION = 2  # version 1 had neither a head nor a version number
FILE = "epoch.safetensors"
BEST, BEST_PREMISES = "best.safetensors", "best_premises.safetensors"  # the second only in mode DUAL
NEXT = "next-"  # before the name of weights that replace these once the state names their epoch


@dataclass
class TrainingState:
    """How far training has come, apart from tensors. `best_epoch` is 0 until the first epoch has ended, never later."""

    epochs_done: int = 0
    steps_done: int = 0
    validation_map: float = 0.0
    best_map: float = 0.0
    best_epoch: int = 0


def save_state(directory: Path, state: TrainingState, learner: nn.Module, optimizer: optim.Optimizer) -> None:
    """Replaces the state atomically; tensors and values share a file, so they cannot disagree."""
    tensors = {f"weights/{name}": tensor for name, tensor in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}/{name}"] = value
    metadata = {"format_version": str(FORMAT_VERSION), "standing": json.dumps(asdict(state))}
    _save(directory / FILE, tensors, metadata)


def load_state(directory: Path, learner: nn.Module, optimizer: optim.Optimizer) -> TrainingState:
    """Restores weights and moments and returns the state; a fresh one if none is stored.

    Raises FailedPrecondition for a state of another format version.
    """
    path = directory / FILE
    if not path.is_file():
        return TrainingState()
    parameters = dict(learner.named_parameters())
    with safe_open(path, framework="pt") as file:
        if file.metadata().get("format_version") != str(FORMAT_VERSION):
            raise FailedPrecondition(f"{path} was written by another version of the trainer; start a new job")
        state = TrainingState(**json.loads(file.metadata()["standing"]))
        weights = {}
        for key in file.keys():  # noqa: SIM118 - not a mapping
            kind, name = key.split("/", 1)
            if kind == "weights":
                weights[name] = file.get_tensor(key)
            else:
                device = "cpu" if kind == "step" else parameters[name].device  # AdamW counts steps on the CPU
                optimizer.state[parameters[name]][kind] = file.get_tensor(key).to(device)
    learner.load_state_dict(weights)
    return state


def save_weights(path: Path, weights: dict[str, Tensor], epoch: int) -> None:
    """Stores the weights of an epoch beside the file that holds the best so far; `settle_weights` replaces it."""
    _save(path.with_name(f"{NEXT}{path.name}"), weights, {"epoch": str(epoch)})


def settle_weights(directory: Path, state: TrainingState) -> None:
    """Gives the best weights their names if the state knows their epoch, and drops those of an epoch that was lost."""
    for name in (BEST, BEST_PREMISES):
        path = directory / f"{NEXT}{name}"
        if not path.is_file():
            continue
        with safe_open(path, framework="pt") as file:
            is_best = file.metadata()["epoch"] == str(state.best_epoch)
        if is_best:
            path.replace(directory / name)
        else:
            path.unlink()
        sync_directory(directory)


def _save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
    # Through bytes: the library's writer hides a full disk behind its own error class.
    atomic_write(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata))
