"""One index as operators run it: its own process, files on disk, calls over loopback."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aeenc import Channel, IndexClient
from services.launcher.processes import free_port
from support.service_process import ServiceProcess


@dataclass(frozen=True)
class IndexFleet:
    """An index's process and the directory of its corpora."""

    process: ServiceProcess
    metrics_port: int
    artifacts_dir: Path

    def client(self, *, retry: bool = True, timeout_s: float = 60.0) -> IndexClient:
        """A client on a connection of its own."""
        return IndexClient(Channel(self.process.target, retry=retry, timeout_s=timeout_s))


def index_fleet(home: Path, **settings: object) -> IndexFleet:
    """Describes an index whose log lies in `home`, not yet started; `artifacts_dir` is `home`/artifacts unless set."""
    chosen = {"metrics_port": free_port(set()), "artifacts_dir": home / "artifacts", **settings}
    process = ServiceProcess.of("index", home, **chosen)
    return IndexFleet(process, int(str(chosen["metrics_port"])), Path(str(chosen["artifacts_dir"])))


@asynccontextmanager
async def running_index(artifacts_dir: Path | None = None, **settings: object) -> AsyncIterator[IndexFleet]:
    """Starts an index over a directory of its own, or over `artifacts_dir`; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        index = index_fleet(home, **{"artifacts_dir": artifacts_dir or home / "artifacts", **settings})
        async with index.process.running():
            yield index
