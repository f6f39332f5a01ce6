"""A Redis with replicas and Sentinels on the loopback: processes that tests and benchmarks kill, pause and restart."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.launcher.private_redis import REWRITE_AT, find_redis_server
from services.launcher.processes import free_port

MASTER = "main"
DOWN_AFTER_MS = 1000
START_S = 15.0


class RedisNode:
    """One redis-server or Sentinel with a configuration file, which a Sentinel rewrites when roles change."""

    def __init__(self, home: Path, port: int, lines: list[str], *, sentinel: bool = False) -> None:
        home.mkdir(parents=True)
        self.port = port
        self._file = home / "redis.conf"
        own = [f"port {port}", "bind 127.0.0.1", f"dir {home}", f"logfile {home}/redis.log", "daemonize no", *lines]
        self._file.write_text("\n".join(own) + "\n")
        self._options = ["--sentinel"] if sentinel else []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def client(self) -> redis.Redis:
        """A blocking client of this server, which tries once."""
        at_once = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, retry=at_once, socket_timeout=2.0, decode_responses=True)

    def start(self) -> None:
        """Starts it and waits until it answers."""
        command = [find_redis_server(), str(self._file), *self._options]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        with self.client() as client:
            while True:
                with contextlib.suppress(redis.RedisError):
                    client.ping()
                    return
                if time.monotonic() > deadline or not self.alive:
                    raise RuntimeError(f"redis at port {self.port} does not answer; see {self._file.parent}/redis.log")
                time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL and waits until it is gone, paused or not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class ReplicatedRedis:
    """A master, its replicas and three Sentinels, running once made."""

    name = "redis"

    def __init__(self, home: Path, *, replicas: int = 1, sentinels: int = 3) -> None:
        taken: set[str] = set()

        def port() -> int:
            found = free_port(taken)
            taken.add(f"127.0.0.1:{found}")
            return found

        durable = ["appendonly yes", "appendfsync always", 'save ""', "repl-diskless-sync-delay 0", "repl-timeout 60"]
        durable += [f"{name} {value}" for name, value in REWRITE_AT.items()]
        first = port()
        self.nodes = [RedisNode(home / "redis-0", first, durable)]
        for number in range(1, replicas + 1):
            lines = [*durable, f"replicaof 127.0.0.1 {first}"]
            self.nodes.append(RedisNode(home / f"redis-{number}", port(), lines))
        watch = [
            f"sentinel monitor {MASTER} 127.0.0.1 {first} {sentinels // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {MASTER} 4000",
        ]
        self.sentinels = [
            RedisNode(home / f"sentinel-{number}", port(), watch, sentinel=True) for number in range(sentinels)
        ]
        for node in (*self.nodes, *self.sentinels):
            node.start()
        self._await(lambda: self._replicas(self.nodes[0]) == replicas)
        if sentinels:
            self._await(lambda: all(self._knows(one, replicas, sentinels - 1) for one in self.sentinels))

    @property
    def url(self) -> str:
        """The address by the Sentinels; a fail-over keeps it."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/{MASTER}/0"

    def master(self) -> RedisNode:
        """The server that the Sentinels name now."""
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError), sentinel.client() as client:
                _, port = client.sentinel_get_master_addr_by_name(MASTER)
                return next(node for node in self.nodes if node.port == port)
        raise RuntimeError("no Sentinel answers")

    async def follows(self, former: RedisNode) -> RedisNode:
        """Waits until the Sentinels name another master, which says that it is one, and returns it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = await asyncio.to_thread(self.master)
            if found is not former and await asyncio.to_thread(self._is_master, found):
                return found
            await asyncio.sleep(0.05)
        raise RuntimeError("no fail-over within a minute")

    async def whole(self) -> None:
        """Waits until every other server is a replica of the master and in step."""
        deadline = time.monotonic() + 60
        while self._replicas(await asyncio.to_thread(self.master)) < len(self.nodes) - 1:
            if time.monotonic() > deadline:
                raise RuntimeError("the replicas have not come back within a minute")
            await asyncio.sleep(0.1)

    def stop(self) -> None:
        """Ends all processes, paused ones, too."""
        for node in (*self.sentinels, *self.nodes):
            node.signal(signal.SIGCONT)
            node.kill()

    def _await(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not holds():
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("the replicas or the Sentinels have not found each other")
            time.sleep(0.05)

    @staticmethod
    def _replicas(node: RedisNode) -> int:
        """How many replicas are online and answer."""
        with contextlib.suppress(redis.RedisError), node.client() as client:
            told = client.info("replication")
            online = sum(told[f"slave{number}"]["state"] == "online" for number in range(int(told["connected_slaves"])))
            client.publish("in-step", "")  # one that loads what it was sent is online, and answers later
            return min(online, int(client.wait(online, 100)))
        return -1

    @staticmethod
    def _is_master(node: RedisNode) -> bool:
        with contextlib.suppress(redis.RedisError), node.client() as client:
            return bool(client.role()[0] == "master")
        return False

    @staticmethod
    def _knows(sentinel: RedisNode, replicas: int, others: int) -> bool:
        with sentinel.client() as client:
            found = client.sentinel_master(MASTER)
            return (int(found["num-slaves"]), int(found["num-other-sentinels"])) == (replicas, others)
