"""A service in a process of its own, as an operator runs it; benchmarks and crash tests share it.

    start ──▶ ready (health is SERVING) ──▶ kill (SIGKILL) ──▶ restart …  ──▶ stop (SIGTERM)

The port and the log file stay the same across restarts. Redis has the same life cycle over the same files.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.kit.healthcheck import connects
from services.launcher.private_redis import PrivateRedis, start_private_redis
from services.launcher.processes import becomes_free, free_port

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 15.0
POLL_S = 0.02
_QUICK_RECONNECTS = [(f"grpc.{name}_reconnect_backoff_ms", 50) for name in ("initial", "min", "max")]


class ServiceProcess:
    """A Python process that listens on `port`, of the loopback by default. Its output goes to `home`/`name`.log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        home: Path,
        *,
        port: int,
        host: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
        has_health: bool = True,
    ) -> None:
        self.name = name
        self.target = f"{host}:{port}"
        self.log = home / f"{name}.log"
        self.starting_s = 0.0  # from the last start to `ready`
        self._command = [sys.executable, *command]
        self._environment = {**os.environ, **(environment or {})}
        paths = [str(ROOT), str(ROOT / "clients" / "python"), *filter(None, [(environment or {}).get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(paths)  # and packages beside the checkout
        self._has_health = has_health
        self._started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def of(
        cls,
        service: str,
        home: Path,
        *,
        name: str = "",
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Self:
        """Describes `python -m services.SERVICE` by fields of its settings class; port 0 stands for a free one."""
        port = int(str(settings.get("port") or free_port(set())))
        settings = {"log_level": "warning", **settings, "port": port}
        own = {f"AEENC_{service.upper()}_{key.upper()}": _as_text(value) for key, value in settings.items()}
        command, given = ["-m", f"services.{service}"], {**(environment or {}), **own}
        host = str(settings.get("host") or "127.0.0.1")
        return cls(name or service, command, home, port=port, host=host, environment=given)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the last start."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started; call start first")
        return self._process

    @property
    def pid(self) -> int:
        """The id of the process of the last start."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it and waits for nothing. Not by asyncio, whose uvloop forks while grpc's threads run."""
        self._started = time.monotonic()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    async def ready(self) -> None:
        """Waits until it serves. Raises RuntimeError with the end of its log when it ends or takes over a minute."""
        if self._has_health:
            await self._serves()
        else:
            await asyncio.to_thread(self.wait_listening)
        self.starting_s = time.monotonic() - self._started

    def wait_listening(self) -> None:
        """Waits until it accepts connections; raises as `ready` does."""
        while not connects(self.target):
            self._check_starting()
            time.sleep(POLL_S)

    async def restart(self) -> None:
        """Starts it again at the same address and waits until it serves."""
        await asyncio.to_thread(becomes_free, self.target)
        self.start()
        await self.ready()

    def kill(self) -> None:
        """Sends SIGKILL and waits until it is gone. Does nothing to one that was never started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def stop(self) -> int | None:
        """Sends SIGTERM, and SIGKILL to one that has not ended after 15 s. Returns the exit status."""
        if self.alive:
            await asyncio.to_thread(self.end, signal.SIGTERM)
        return None if self._process is None else self._process.returncode

    def end(self, number: int) -> None:
        """Sends a signal, and SIGKILL to one that has not ended after 15 s."""
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Starts it, waits until it serves, and stops it with the block."""
        self.start()
        try:
            await self.ready()
            yield self
        finally:
            await self.stop()

    def resident_mb(self) -> float:
        """The resident memory, anonymous and mapped files, in MB."""
        return float(psutil.Process(self.pid).memory_info().rss) / 1e6

    def maps(self, name: str) -> bool:
        """Whether the process has a file of that name mapped."""
        return name in Path(f"/proc/{self.pid}/maps").read_text()

    async def _serves(self) -> None:
        async with grpc.aio.insecure_channel(self.target, options=_QUICK_RECONNECTS) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            while True:
                self._check_starting()
                try:
                    answer = await check(health_pb2.HealthCheckRequest())
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(POLL_S)

    def _check_starting(self) -> None:
        late = time.monotonic() - self._started > START_S
        if late or not self.alive:
            what = f"does not serve after {START_S:g} s" if late else "ended at its start"
            raise RuntimeError(f"{self.name} {what}:\n{self.log.read_text(errors='replace')[-3000:]}")


class RedisProcess:
    """A private Redis over `home`, append-only, every write on disk before it is acknowledged; running once made."""

    name = "redis"

    def __init__(self, home: Path) -> None:
        self._home = home
        self._server: PrivateRedis = start_private_redis(home)

    @property
    def url(self) -> str:
        """The address; a restart keeps it."""
        return self._server.url

    def kill(self) -> None:
        """Sends SIGKILL and waits until it is gone."""
        self._server.process.kill()
        self._server.process.wait()

    async def restart(self) -> None:
        """Starts it again over the same files and waits until it answers."""
        self._server = await asyncio.to_thread(start_private_redis, self._home)

    def stop(self) -> None:
        """Asks it to exit, and waits."""
        self._server.stop()


def _as_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)
