"""`make bench NAME=hosts`: two hosts with nothing in common but a network, an S3 server and a Redis.

    hub 10.77.0.1   callers, moto's S3, a Redis ──┬── bridge
    a   10.77.0.2   encoder, index, a directory  ─┤       cut | slow | S3 suspended | Redis cut
    b   10.77.0.3   encoder, index, a directory  ─┘

The hosts are network namespaces, so it needs Linux and root. It runs itself in a namespace of its own, and the network
of the machine sees nothing of it. Callers compare every answer with what its generation must give.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aeenc import AsyncClient, errors
from aeenc.values import Activation, Premise
from benchmarks.harness.rows import ROOT, Rows
from services.store.artifacts import ArtifactStore
from services.store.objects import open_store
from services.store.redis import connect
from services.store.registry import Registry
from support.models.tiny_checkpoints import TinyCheckpoint, register, write_tiny_checkpoint
from support.relay import Relay
from support.servers.s3_server import s3_server
from support.service_process import RedisProcess, ServiceProcess

INSIDE = "AEENC_BENCH_NAMESPACE"
NETWORK, HUB = "10.77.0.{}/24", "10.77.0.1"
TOKEN, URL, NAMESPACE, CORPUS = "of-the-benchmark", "s3://bucket/aeenc", "hosts", "science"
FACTS = ["the sun is a kind of star", "ice is a kind of solid", "water is a kind of liquid", "iron is a kind of metal"]
QUERIES = ["the sun is hot", "ice can melt", "iron can push a magnet"]
CALLERS, CALL_S = 4, 20.0
FOLLOW_S = 3.0  # "within a second or two", and the time of a look
WAKE_S = 20.0  # TCP tries again after up to twice the time that a link was cut
SLOW = "1mbit"


class Host:
    """A network namespace with one address; its link to the hub can be cut and made slow."""

    def __init__(self, name: str, number: int) -> None:
        self.address = NETWORK.format(number).partition("/")[0]
        self._link, inner = f"to-{name}", f"from-{name}"
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"])
        self.prefix = ["nsenter", "-t", str(self._holder.pid), "-n"]
        while Path(f"/proc/{self._holder.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.01)
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", inner)
        _run("ip", "link", "set", inner, "netns", str(self._holder.pid))
        _run("ip", "link", "set", self._link, "master", "hub", "up")
        _run(*self.prefix, "ip", "address", "add", NETWORK.format(number), "dev", inner)
        for device in ("lo", inner):
            _run(*self.prefix, "ip", "link", "set", device, "up")

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        _run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Everything passes again."""
        _run("ip", "link", "set", self._link, "up")

    @contextmanager
    def slow(self) -> Iterator[None]:
        """What goes to the host passes slowly during the block."""
        shape = ["rate", SLOW, "burst", "16kbit", "latency", "200ms"]
        _run("tc", "qdisc", "add", "dev", self._link, "root", "tbf", *shape)
        try:
            yield
        finally:
            _run("tc", "qdisc", "del", "dev", self._link, "root")

    def close(self) -> None:
        """Removes the namespace."""
        self._holder.kill()
        self._holder.wait()


@dataclass
class Calls:
    """Retrieve calls under way: their outcomes, and what was wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    async def repeat(self, client: AsyncClient, right: dict[str, list[list[str]]], until: Callable[[], bool]) -> None:
        """Calls until told to stop, and compares."""
        while not until():
            begun = time.monotonic()
            try:
                answer = await client.index.retrieve(CORPUS, QUERIES, k=3)
            except errors.AeencError as error:
                self.outcomes[f"{error.code} {error.message[:60]}"] += 1
                continue
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
            self.outcomes["OK"] += 1
            found = [[hit.id for hit in hits] for hits in answer.results]
            if right.get(answer.generation) != found:
                self.wrong.append(f"{found} in {answer.generation}")
            await asyncio.sleep(0.02)


class Hosts:
    """Both hosts with an encoder and an index each, and what the hub sees of them."""

    def __init__(self, home: Path, redis_url: str, environment: dict[str, str]) -> None:
        self.hosts = {"a": Host("a", 2), "b": Host("b", 3)}
        encoders = ",".join(f"{host.address}:50051" for host in self.hosts.values())
        self.processes: dict[str, dict[str, ServiceProcess]] = {}
        for name, host in self.hosts.items():
            common = {
                "host": host.address,
                "token": TOKEN,
                "admin_token": TOKEN,
                "artifacts_dir": home / name,
                "artifacts_url": URL,
            }
            encoder = {**common, "redis_url": redis_url, "namespace": NAMESPACE, "state_dir": home / f"{name}-state"}
            index = {**common, "encoder_target": encoders, "peer_token": TOKEN}
            start = {"prefix": host.prefix, "environment": environment}
            self.processes[name] = {
                "encoder": ServiceProcess.of("encoder", home, name=f"encoder-{name}", port=50051, **start, **encoder),
                "index": ServiceProcess.of("index", home, name=f"index-{name}", port=50052, **start, **index),
            }

    async def start(self) -> None:
        """Starts all; each says that it serves."""
        for service in ("encoder", "index"):
            for own in self.processes.values():
                own[service].start()
            await asyncio.gather(*(own[service].ready() for own in self.processes.values()))

    def client(self, *names: str) -> AsyncClient:
        """A client of the encoders and indexes of some hosts, of all by default."""
        own = [self.processes[name] for name in names or self.hosts]
        targets = {service: ",".join(one[service].target for one in own) for service in ("encoder", "index")}
        return AsyncClient(**targets, token=TOKEN, admin_token=TOKEN, timeout_s=CALL_S)

    async def close(self) -> None:
        """Ends all."""
        for host in self.hosts.values():
            host.mend()
        await asyncio.gather(*(one.stop() for own in self.processes.values() for one in own.values()))
        for host in self.hosts.values():
            host.close()


class Trial:
    """What is done to the hosts while callers call."""

    def __init__(self, rows: Rows, hosts: Hosts, redis: Relay, s3: subprocess.Popen[str]) -> None:
        self._rows, self._hosts, self._redis, self._s3 = rows, hosts, redis, s3
        self._right: dict[str, list[list[str]]] = {}
        self._generations: list[str] = []

    async def run(self) -> None:
        """One fault after the other."""
        a, b = self._hosts.client("a"), self._hosts.client("b")
        begun = time.monotonic()
        for count in (len(FACTS), len(FACTS) - 1):
            premises = [Premise(id=f"f{n}", text=text) for n, text in enumerate(FACTS[:count])]
            built = await a.index.build(CORPUS, premises, activate=True)
            self._generations.append(built.id)
        for generation in self._generations:
            answer = await a.index.retrieve(CORPUS, QUERIES, k=3, generation=generation)
            self._right[generation] = [[hit.id for hit in hits] for hits in answer.results]
        self._rows.note("two builds on host a, each activated", time.monotonic() - begun, "s", "")
        await self._activate(a, b)
        await self._partition(a, b)
        b_host = self._hosts.hosts["b"]
        with b_host.slow():
            await self._under_load(f"the way to b has {SLOW}/s", self._activate_both, a, b)
        await self._under_load("S3 suspended for 5 s", self._suspend_s3)
        await self._under_load("Redis cut off for 5 s", self._cut_redis)
        for client in (a, b):
            await client.close()

    async def _activate(self, a: AsyncClient, b: AsyncClient) -> None:
        """After each acknowledgement the other host must answer from that generation at once."""
        stale, behind = 0, 0
        for number in range(20):
            generation = self._generations[number % 2]
            done = await (a, b)[number % 2].index.activate(CORPUS, generation)
            behind += _behind(done) + (len(done.replicas) != 2)
            for client in (a, b):
                stale += (await client.index.retrieve(CORPUS, QUERIES, k=3)).generation != generation
        self._rows.at_most("20 activations: answers of either host from another generation", stale, "answers", 0)
        self._rows.at_most("20 activations: hosts not counted, or behind", behind, "hosts", 0)

    async def _activate_both(self, a: AsyncClient, b: AsyncClient) -> None:
        for generation in self._generations:
            for client in (a, b):
                await client.index.activate(CORPUS, generation)

    async def _partition(self, a: AsyncClient, b: AsyncClient) -> None:
        host = self._hosts.hosts["b"]
        new = self._generations[0]
        await a.index.activate(CORPUS, self._generations[1])

        async def cut() -> None:
            host.cut()
            inside = asyncio.to_thread(self._call_inside, "b", 8.0)
            done, told = await asyncio.gather(a.index.activate(CORPUS, new), inside)
            names = [one.instance for one in done.replicas if one.behind]
            self._rows.add(
                "b cut off: an activation names it as behind", len(names), "hosts", "1", len(names) == 1, names
            )
            fine = told["OK"] > 0 and len(told) == 1
            self._rows.add("b cut off: callers on b are answered by b", told["OK"], "calls", "all", fine, dict(told))

        await self._under_load("b cut off for 8 s and more", cut)
        host.mend()
        begun = time.monotonic()
        while time.monotonic() - begun < 60:
            try:
                if (await b.index.retrieve(CORPUS, QUERIES, k=3, timeout_s=5)).generation == new:
                    break
            except errors.AeencError:
                pass
            await asyncio.sleep(0.05)
        self._rows.at_most(
            "mended: until b serves the generation activated meanwhile", time.monotonic() - begun, "s", WAKE_S
        )

    async def _suspend_s3(self) -> None:
        self._s3.send_signal(19)
        try:
            await asyncio.sleep(5)
        finally:
            self._s3.send_signal(18)

    async def _cut_redis(self) -> None:
        self._redis.silence()
        await asyncio.sleep(5)
        self._redis.heal()

    async def _under_load(self, name: str, fault: Callable[..., Awaitable[None]], *arguments: AsyncClient) -> None:
        """Runs a fault beside callers on the hub, who know both hosts."""
        calls, stop = Calls(), asyncio.Event()
        client = self._hosts.client()
        await client.index.retrieve(CORPUS, QUERIES, k=3)
        callers = [asyncio.create_task(calls.repeat(client, self._right, stop.is_set)) for _ in range(CALLERS)]
        try:
            await fault(*arguments)
        finally:
            stop.set()
            await asyncio.gather(*callers)
        await client.close()
        failed = calls.outcomes.total() - calls.outcomes["OK"]
        told = f"{dict(calls.outcomes)}, longest {calls.longest_s:.1f} s"
        self._rows.at_most(f"{name}: Retrieve failed, by callers who know both", failed, "calls", 0, told)
        self._rows.at_most(f"{name}: wrong answers", len(calls.wrong), "answers", 0, calls.wrong[:3])

    def _call_inside(self, name: str, seconds: float) -> Counter[str]:
        """Calls the index of a host from that host, in a process of its own."""
        own = self._hosts.processes[name]["index"]
        command = [*self._hosts.hosts[name].prefix, sys.executable, "-m", "benchmarks.fleet.hosts"]
        done = subprocess.run(
            [*command, "--call", own.target, str(seconds)],
            check=True,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return Counter(json.loads(done.stdout))


def _behind(done: Activation) -> int:
    return sum(one.behind for one in done.replicas)


async def call(target: str, seconds: float) -> None:
    """Calls one index for some seconds and prints the outcomes as JSON."""
    outcomes: Counter[str] = Counter()
    end = time.monotonic() + seconds
    async with AsyncClient(index=target, token=TOKEN, timeout_s=CALL_S) as client:
        while time.monotonic() < end:
            try:
                await client.index.retrieve(CORPUS, QUERIES, k=3)
                outcomes["OK"] += 1
            except errors.AeencError as error:
                outcomes[f"{error.code} {error.message[:80]}"] += 1
    print(json.dumps(outcomes))


async def main() -> None:
    """Makes the network, the hosts and what they share, and puts them to the trial."""
    rows = Rows("hosts")
    _run("ip", "link", "add", "hub", "type", "bridge")
    _run("ip", "address", "add", NETWORK.format(1), "dev", "hub")
    for device in ("lo", "hub"):
        _run("ip", "link", "set", device, "up")
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aeenc-bench-")))
        s3, environment = stack.enter_context(s3_server(Path(os.environ[INSIDE]), HUB))
        os.environ.update({name: value for name, value in environment.items() if name != "PYTHONPATH"})
        sys.path.append(environment["PYTHONPATH"])
        redis = RedisProcess(home / "redis")
        stack.callback(redis.stop)
        await _publish(ArtifactStore(home / "made"), redis.url)
        relay = await stack.enter_async_context(Relay(redis.url.removeprefix("unix://"), host=HUB))
        hosts = Hosts(home, f"redis://{relay.address}/0", dict(environment))
        stack.push_async_callback(hosts.close)
        await hosts.start()
        await Trial(rows, hosts, relay, s3).run()
    rows.finish()


async def _publish(store: ArtifactStore, redis_url: str) -> TinyCheckpoint:
    """Makes a model, puts it into the bucket and gives it the label stable."""
    made = write_tiny_checkpoint(store, seed=1)
    open_store(store.root, URL).push("checkpoints", made.version)
    redis = connect(redis_url)
    registry = Registry(redis, NAMESPACE)
    await register(registry, made)
    await registry.set_label(made.space_id, "stable", made.version)
    await redis.aclose()
    return made


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def enter_namespace() -> None:
    """Starts this program again in a network namespace of its own; ends with a reason where that cannot be."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if missing or sys.platform != "linux" or os.geteuid() != 0:
        raise SystemExit(
            f"hosts needs Linux, root and {', '.join(missing) or 'network namespaces'}; nothing was measured"
        )
    with tempfile.TemporaryDirectory(prefix="aeenc-s3-") as home:
        with s3_server(Path(home)):  # installs its packages while there is a network
            pass
        environment = {**os.environ, INSIDE: home, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = ["unshare", "-n", sys.executable, "-m", "benchmarks.fleet.hosts"]
        raise SystemExit(subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", nargs=2, metavar=("TARGET", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        asyncio.run(call(options.call[0], float(options.call[1])))
    elif INSIDE in os.environ:
        asyncio.run(main())
    else:
        enter_namespace()
