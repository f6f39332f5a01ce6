"""The device that a process of a job computes on."""

from __future__ import annotations

import torch

from aeenc.errors import FailedPrecondition


def device_of(wanted: str, number: int = 0) -> torch.device:
    """The device of a job's process by its number: its own GPU where there are any, for `auto`, `cpu` or `cuda`.

    Raises FailedPrecondition for `cuda` where torch finds no GPU.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", number % torch.cuda.device_count())
    if wanted == "cuda":
        raise FailedPrecondition(
            "AEENC_TRAINER_DEVICE=cuda, but torch finds no GPU here; install a torch with CUDA on a machine with a "
            "GPU, or set AEENC_TRAINER_DEVICE=auto"
        )
    return torch.device("cpu")
