"""Several processes train one encoder: torch's DistributedDataParallel over gloo, or over NCCL between GPUs.

Rank 0 is the job's process; it starts the others, evaluates, saves and exports. Each computes its share of every batch,
so the averaged gradient is that of the whole batch. Losses with negatives from the batch see only those of the share.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn

from aeenc.errors import FailedPrecondition
from services.kit.logs import get
from services.trainer.registry.child import MODULE

log = get(__name__)

MEETING = "ranks"  # the file through which the processes of a job find each other
PATIENCE_S = 1800.0  # rank 0 evaluates while the others wait
ENCODED_A_SECOND = 20  # premises, at least, by a large model on a CPU
POLL_S = 0.05
ENDING_POLLS = 40


@dataclass(frozen=True)
class Rank:
    """This process among those of its job."""

    number: int = 0
    processes: int = 1

    @property
    def leads(self) -> bool:
        """Whether it evaluates, saves and reports."""
        return self.number == 0

    def share(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """Returns its part of a batch, and the weight that makes the mean over processes the sum of their losses.

        A process without units, in a batch smaller than their number, gets one unit of weight 0.
        """
        own = units[self.number :: self.processes]
        return (own, float(self.processes)) if len(own) else (units[:1], 0.0)

    def wrap(self, learner: nn.Module) -> nn.Module:
        """Returns the module with gradients averaged over the processes; the module itself if there is one process."""
        if self.processes == 1:
            return learner
        return nn.parallel.DistributedDataParallel(learner, find_unused_parameters=True)

    def meet(self) -> None:
        """Waits for all processes."""
        if self.processes > 1:
            distributed.barrier()


@contextmanager
def together(directory: Path, rank: Rank, device: torch.device, premises: int = 0) -> Iterator[None]:
    """Runs the other processes during the block; rank 0 may encode so many premises while they wait.

    Raises FailedPrecondition if one of them ends too early.
    """
    if rank.processes == 1:
        yield
        return
    others = _start(directory, rank.processes) if rank.leads else []
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all run on this machine, whatever its host name resolves to
    try:
        # Until all others have loaded; one that dies, which torch does not notice, is found here.
        while rank.leads and not all(_here(directory, number).exists() for number in range(1, rank.processes)):
            _raise_for_ended(others)
            time.sleep(POLL_S)
        if not rank.leads:
            _here(directory, rank.number).touch()
        if device.type == "cuda":
            torch.cuda.set_device(device)  # NCCL waits on the current one
        distributed.init_process_group(
            _backend_of(device, rank.processes),
            init_method=(directory / MEETING).absolute().as_uri(),
            rank=rank.number,
            world_size=rank.processes,
            timeout=timedelta(seconds=PATIENCE_S + premises / ENCODED_A_SECOND),
        )
        yield
        distributed.destroy_process_group()
    except RuntimeError:
        for _ in range(ENDING_POLLS if others else 0):  # a connection breaks before its process ends
            _raise_for_ended(others)
            time.sleep(POLL_S)
        raise
    finally:
        for other in others:
            if other.stdin is not None:
                other.stdin.close()  # their lifeline
            other.wait()


def _backend_of(device: torch.device, processes: int) -> str:
    """Names what processes communicate by. NCCL refuses two on one GPU."""
    if device.type != "cuda":
        return "gloo"
    if processes <= (cards := torch.cuda.device_count()):
        return "nccl"
    log.warning("processes share a GPU, which gains nothing", processes=processes, gpus=cards)
    return "gloo"


def _start(directory: Path, processes: int) -> list[subprocess.Popen[bytes]]:
    (directory / MEETING).unlink(missing_ok=True)
    for number in range(1, processes):
        _here(directory, number).unlink(missing_ok=True)
    command = [sys.executable, "-m", MODULE, "rank", str(directory)]
    return [subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE) for number in range(1, processes)]


def _here(directory: Path, number: int) -> Path:
    """Names the file by which a process reports that it has loaded."""
    return directory / f"{MEETING}-{number}"


def _raise_for_ended(others: Sequence[subprocess.Popen[bytes]]) -> None:
    """Raises FailedPrecondition if a process has ended that this one still needs."""
    for number, other in enumerate(others, start=1):
        if other.poll() is not None:
            raise FailedPrecondition(
                f"process {number} of {len(others) + 1} ended with status {other.returncode}; the trainer's log says "
                "why; resume to go on from the last epoch"
            )
