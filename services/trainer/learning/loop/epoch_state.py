"""The state from which a killed job resumes: weights, optimiser moments and the best epoch, in one file.

It is safetensors and JSON, never pickle. Randomness is seeded by epoch, so no generator state is kept. Every file has
the hash of its content, so that a damaged one is told from a sound one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn, optim

from services.kit.logs import get
from services.store.files import atomic_write, sync_directory
from services.store.formats import check_format, known_fields
from services.trainer.jobs.files import EPOCH_STATE

log = get(__name__)

FORMAT_VERSION = 1
FILE = EPOCH_STATE
BEST, BEST_PREMISES = "best.safetensors", "best_premises.safetensors"  # the second only in mode DUAL
HASH = "sha256"  # of the tensors and of the other metadata, beside them
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
    _save(directory / FILE, tensors, {"standing": json.dumps(asdict(state))})


def load_state(directory: Path, learner: nn.Module, optimizer: optim.Optimizer) -> TrainingState:
    """Restores weights and moments and returns the state; a fresh one if none is stored. Raises NewerFormat."""
    path = directory / FILE
    if not path.is_file():
        return TrainingState()
    parameters = dict(learner.named_parameters())
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        check_format(metadata, FORMAT_VERSION, str(path))
        state = TrainingState(**known_fields(TrainingState, json.loads(metadata["standing"])))
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


def discard_if_damaged(directory: Path) -> None:
    """Removes everything that is kept of training if a part of it is damaged: without it the job begins again.

    Raises NewerFormat for a state of a newer release, whose hash may be another.
    """
    kept = [directory / f"{prefix}{name}" for name in (BEST, BEST_PREMISES) for prefix in ("", NEXT)]
    kept = [path for path in (directory / FILE, *kept) if path.is_file()]
    damaged = [path for path in kept if not _is_sound(path)]
    if not damaged:
        return
    log.warning("a job's state is damaged; it begins again from its first epoch", path=str(damaged[0]))
    for path in kept:
        path.unlink()
    sync_directory(directory)


def _is_sound(path: Path) -> bool:
    """Tells whether a file's content has the hash that was written with it."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            check_format(metadata, FORMAT_VERSION, str(path))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, ValueError, KeyError):
        return False
    return metadata.get(HASH) == _hash(tensors, metadata)


def _hash(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps({**metadata, HASH: ""}, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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


def _save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # Through bytes: the library's writer hides a full disk behind its own error class.
    stored = {"format_version": str(FORMAT_VERSION), **metadata}
    atomic_write(path, save(plain, {**stored, HASH: _hash(plain, stored)}))
