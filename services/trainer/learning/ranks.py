"""Several processes that train one encoder: torch's DistributedDataParallel over gloo, or over NCCL between GPUs.

Rank 0 is the job's process; it starts the others, evaluates, saves and exports. Each computes its share of every batch,
so that the gradient is that of the whole batch. Losses whose negatives come from the batch see those of the share.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn

from aeenc.errors import FailedPrecondition
from services.trainer.child import MODULE

MEETING = "ranks"  # the file by which the processes of a job find each other
PATIENCE = timedelta(minutes=30)  # rank 0 evaluates while the others wait


@dataclass(frozen=True)
class Rank:
    """This process among those of its job."""

    number: int = 0
    processes: int = 1

    @property
    def leads(self) -> bool:
        """Whether it evaluates, saves and tells."""
        return self.number == 0

    def share(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """Its part of a batch, and what its mean loss counts so that the mean over processes is that over the batch.

        A batch smaller than the number of processes leaves some with a unit that counts nothing.
        """
        own = units[self.number :: self.processes]
        if not len(own):
            return units[:1], 0.0
        return own, len(own) * self.processes / len(units)

    def wrap(self, learner: nn.Module) -> nn.Module:
        """The module whose gradients are averaged over the processes; the module itself where there is one."""
        if self.processes == 1:
            return learner
        return nn.parallel.DistributedDataParallel(learner, find_unused_parameters=True)

    def meet(self) -> None:
        """Waits for the others."""
        if self.processes > 1:
            distributed.barrier()


@contextmanager
def together(directory: Path, rank: Rank, device: torch.device) -> Iterator[None]:
    """The others run while the block does. Raises FailedPrecondition when one of them has ended before its time."""
    if rank.processes == 1:
        yield
        return
    others = _start(directory, rank.processes) if rank.leads else []
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on this machine, whatever its host name resolves to
    try:
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=(directory / MEETING).absolute().as_uri(),
            rank=rank.number,
            world_size=rank.processes,
            timeout=PATIENCE,
        )
        yield
        distributed.destroy_process_group()
    except RuntimeError as error:
        ended = [number for number, other in enumerate(others, start=1) if other.poll()]
        if not ended:
            raise
        raise FailedPrecondition(
            f"process {ended[0]} of {rank.processes} ended with status {others[ended[0] - 1].returncode}; the "
            "trainer's log says why; resume to go on from the last epoch"
        ) from error
    finally:
        for other in others:
            if other.stdin is not None:
                other.stdin.close()  # their lifeline
            other.wait()


def _start(directory: Path, processes: int) -> list[subprocess.Popen[bytes]]:
    (directory / MEETING).unlink(missing_ok=True)
    command = [sys.executable, "-m", MODULE, "rank", str(directory)]
    return [subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE) for number in range(1, processes)]
