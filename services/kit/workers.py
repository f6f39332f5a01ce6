"""Several processes of one service on one port: the kernel deals connections to them (SO_REUSEPORT).

    the process that was started: holds the port, answers no calls
      ├── worker 0 ── instance NAME-0, log file x-0.log, metrics at METRICS_PORT
      └── worker 1 ── instance NAME-1, log file x-1.log, metrics at METRICS_PORT + 1

They end together: on SIGTERM all drain; when one ends by itself the others drain, too, and the exit status is 1. A
worker whose parent has died sees its standard input close, and drains. Only for services whose processes share their
state by other means: workers know nothing of each other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aeenc import errors
from services.kit import logs
from services.kit.concurrency import END_S, ChildProcess, end_with_parent
from services.kit.server import GrpcServer, Settings, cannot_listen, prefix_of, run
from services.kit.settings import TOKENS, ServiceSettings

log = logs.get(__name__)
WORKER = "--worker"  # the only argument of a worker; its settings come as a line of JSON


def run_workers(module: str, build: Callable[[Settings], GrpcServer], settings_class: type[Settings]) -> None:
    """Runs a service as a process, or as so many workers as its settings say. `module`: what `python -m` starts."""
    if sys.argv[1:] == [WORKER]:
        given = settings_class.model_validate_json(sys.stdin.readline())
        end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
        run(build, given)
        return
    settings = settings_class.from_command_line()
    if settings.worker_processes == 1:
        run(build, settings)
        return
    logs.configure(**settings.logging())
    try:
        with held_port(settings) as port:
            workers = [_settings_of(settings, number, port) for number in range(settings.worker_processes)]
            status = asyncio.run(_supervise(module, workers, settings))
    except errors.AeencError as error:
        raise SystemExit(f"the service stopped: {error.message}") from None
    raise SystemExit(status)


@contextmanager
def held_port(settings: ServiceSettings) -> Iterator[int]:
    """Holds the port for processes that share it, and listens to nothing itself. Yields the port.

    Raises Unavailable when anybody listens there. Without this look, two services that were started by mistake would
    share the port.
    """
    family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as alone, socket.socket(family, kind) as holder:
        try:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that end do not count
            alone.bind(address)
            chosen = alone.getsockname()
            alone.close()
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(chosen)
        except OSError:
            raise cannot_listen(settings) from None
        yield int(chosen[1])


def _settings_of(settings: Settings, number: int, port: int) -> Settings:
    """Makes the settings of one worker. Raises InvalidArgument if its metrics would need a port above 65535."""
    changed: dict[str, object] = {"port": port, "instance": f"{settings.instance}-{number}"}
    changed |= dict.fromkeys(f"{name}_file" for name in TOKENS)  # the tokens themselves were read from them
    if settings.metrics_port:
        changed["metrics_port"] = last = settings.metrics_port + number
        if last > 65535:
            name = f"{prefix_of(settings)}METRICS_PORT={settings.metrics_port}"
            raise errors.InvalidArgument(f"{name}, and one more for each process, leads to {last}; give a lower one")
    if settings.log_file is not None:
        changed["log_file"] = settings.log_file.with_stem(f"{settings.log_file.stem}-{number}")
    return settings.model_copy(update=changed)


async def _supervise(module: str, workers: list[Settings], settings: ServiceSettings) -> int:
    """Starts the workers and waits for their end. Returns the exit status of this process."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    # Tokens are among the settings: the command line is not for them.
    command = (sys.executable, "-m", module, WORKER)
    processes = [ChildProcess(*command, line=worker.model_dump_json()) for worker in workers]
    ended = [asyncio.create_task(process.wait()) for process in processes]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([stopping, *ended], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not stop.is_set():
        died = {worker.instance: task.result() for worker, task in zip(workers, ended, strict=True) if task.done()}
        log.error("a worker has ended; the others end, too", exit_status=died)
    patience_s = settings.drain_delay_s + settings.drain_s + END_S
    await asyncio.gather(*(process.end(patience_s) for process in processes))
    statuses = await asyncio.gather(*ended)
    return 0 if stop.is_set() and not any(statuses) else 1
