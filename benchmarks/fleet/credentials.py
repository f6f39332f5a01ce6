"""Named credentials over running services: what each opens, a rotation under load, a quota asked for ten times as much.

    python -m benchmarks.fleet.credentials [--seconds 10] [--rotations 4]

Loopback and tiny models only; about two minutes; ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from kit.test_authorisation import ROLES, methods, role_of
from typer.testing import CliRunner

from aeenc import errors
from aeenc.cli.main import app
from aeenc.transport import status
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from benchmarks.harness.baselines import run
from benchmarks.harness.rows import Rows
from benchmarks.promises.authorisation import ANSWERED, SERVED_BY, outcome
from benchmarks.promises.fleet import SERVICES, Fleet, describe_fleet
from support.service_process import RedisProcess
from support.worlds.sampler_world import FakeOracle
from support.worlds.trainer_world import make_space

CALLERS = 16
QUOTA, ASKED = 100, 1000  # calls a second
NOTICED_S = 2.5  # a service looks at its file once a second
OVERLAP_S = 5
DENIED, UNKNOWN = "PERMISSION_DENIED", "UNAUTHENTICATED"
ENCODE = encoder_pb2.EncodeRequest(texts=["a plant needs light"], role=encoder_pb2.ROLE_QUERY)


def token(*words: object) -> str:
    """Runs `aeenc token` and returns what it prints: the token."""
    result = CliRunner().invoke(app, ["token", *map(str, words)])
    if result.exit_code:
        raise RuntimeError(result.output)
    return result.stdout.strip()


@asynccontextmanager
async def running(home: Path, file: Path) -> AsyncIterator[Fleet]:
    """Starts one process of each service, with both tokens and the file."""
    ours = {"token": "common", "admin_token": "admin", "peer_token": "common", "peer_admin_token": "admin"}
    redis = RedisProcess(home / "redis")
    fleet = describe_fleet(
        home,
        redis,
        make_space(home / "space"),
        FakeOracle(),
        "localhost:1",
        counts=dict.fromkeys(SERVICES, 1),
        settings={service: {**ours, "tokens_file": file} for service in SERVICES},
        environment={},
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.stop()
        redis.stop()


async def matrix(rows: Rows, fleet: Fleet, tokens: dict[str, str]) -> None:
    """Every RPC with every credential, then every request that names a corpus with one inside and one outside."""
    faults: list[str] = []
    calls = 0
    for service in SERVICES:
        async with channel_to(fleet, service) as channel:
            mine = {
                name: one for name, one in methods().items() if SERVED_BY.get(one.containing_service.name) == service
            }
            for name, method in mine.items():
                wanted = {
                    **{role: ANSWERED if ROLES.index(role) >= ROLES.index(role_of(name)) else DENIED for role in ROLES},
                    "index": ANSWERED if service == "index" else DENIED,
                    "expired": UNKNOWN,
                    "revoked": UNKNOWN,
                }
                sent = [(who, tokens[who], b"", code) for who, code in wanted.items()]
                sent += [(f"science, {corpus}", tokens["science"], *rest) for corpus, *rest in by_corpus(method)]
                for who, secret, request, code in sent:
                    found = await outcome(channel, method, secret, request)
                    calls += 1
                    if found != code:
                        faults.append(f"{name} with {who}: {found}, not {code}")
    rows.add("every RPC x role, service, corpus: not as documented", len(faults), "calls", "= 0", not faults, calls)
    for fault in faults[:10]:
        print(f"      {fault}")


def by_corpus(method: MethodDescriptor) -> Iterator[tuple[str, bytes, str]]:
    """Requests of a method by the corpus that they name, and what a credential for `science` gets; none without one."""
    made = GetMessageClass(method.input_type)
    for corpus, code in (("science", ANSWERED), ("arts", DENIED)):
        request: Any = made()
        holders = [request, *(getattr(request, one.name) for one in made.DESCRIPTOR.fields if one.message_type)]
        for holder in holders:
            if "corpus" in getattr(getattr(holder, "DESCRIPTOR", None), "fields_by_name", ()):
                holder.corpus = corpus
                yield corpus, request.SerializeToString(), code


async def rotation(rows: Rows, fleet: Fleet, file: Path, count: int) -> None:
    """Rotates the token that callers use, while they call without retries."""
    current = [token("new", "busy", "--role", "read", "--file", file)]
    await asyncio.sleep(NOTICED_S)
    outcomes: Counter[str] = Counter()
    ends = asyncio.Event()
    async with channel_to(fleet, "encoder") as channel:
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)

        async def call() -> None:
            while not ends.is_set():
                outcomes[await code_of(stub, current[0])] += 1

        callers = [asyncio.ensure_future(call()) for _ in range(CALLERS)]
        old_open = old_closed = 0
        for _ in range(count):
            before = current[0]
            fresh = await asyncio.to_thread(token, "rotate", "busy", "--overlap", f"{OVERLAP_S}s", "--file", file)
            await asyncio.sleep(NOTICED_S)
            current[0] = fresh
            old_open += await code_of(stub, before) == "OK"
            await asyncio.sleep(OVERLAP_S - NOTICED_S + 1)
            old_closed += await code_of(stub, before) == UNKNOWN
        ends.set()
        await asyncio.gather(*callers)
    failed = outcomes.total() - outcomes["OK"]
    rows.add(
        f"token rotated {count} times under load: calls failed", failed, "calls", "= 0", not failed, dict(outcomes)
    )
    ok = old_open == old_closed == count
    rows.add("old token: answered in the overlap, refused after it", old_closed, "times", f"= {count}", ok, old_open)


async def quota(rows: Rows, fleet: Fleet, secret: str, seconds: float) -> None:
    """Asks for ten times the quota at a steady pace, and looks at each answer."""
    answered, refused, others, asked = 0, 0, Counter[str](), 0
    async with channel_to(fleet, "encoder") as channel:
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)

        async def ask() -> None:
            nonlocal answered, refused
            try:
                await stub.Encode(ENCODE, metadata=bearer(secret), timeout=20)
                answered += 1
            except grpc.aio.AioRpcError as error:
                known = status.from_rpc_error(error)
                if isinstance(known, errors.Overloaded) and known.retry_after_s and known.reason == "QUOTA_EXCEEDED":
                    refused += 1
                else:
                    others[f"{error.code().name}: {error.details()}"] += 1

        await code_of(stub, "common")  # connects, which is not to be counted
        tasks = set()
        started = time.perf_counter()
        while (elapsed_s := time.perf_counter() - started) < seconds:
            for _ in range(round(elapsed_s * ASKED) - asked):
                asked += 1
                tasks.add(asyncio.ensure_future(ask()))
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
        elapsed_s = time.perf_counter() - started
    rate = answered / elapsed_s
    rows.add(
        f"quota of {QUOTA} calls/s asked for {ASKED}",
        rate,
        "calls/s",
        "95 to 105",
        95 <= rate <= 105,
        asked / elapsed_s,
    )
    bad = asked - answered - refused
    rows.add("the rest: not RESOURCE_EXHAUSTED with RetryInfo", bad, "calls", "= 0", not bad, dict(others) or refused)


async def price(rows: Rows, fleet: Fleet, secret: str) -> None:
    """Measures the p50 of Encode with a named credential and with the common token, in turns."""
    spent: dict[str, list[float]] = {"common": [], secret: []}
    async with channel_to(fleet, "encoder") as channel:
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)
        for _ in range(1500):
            for one, times in spent.items():
                started = time.perf_counter()
                await stub.Encode(ENCODE, metadata=bearer(one), timeout=20)
                times.append(time.perf_counter() - started)
    common, named = (statistics.median(times) * 1e3 for times in spent.values())
    rows.at_most("p50 of Encode, named credential / common token", named / common, "x", 1.1, f"{common:.3f} ms")


async def code_of(stub: Any, secret: str) -> str:
    """The status of one Encode."""
    try:
        await stub.Encode(ENCODE, metadata=bearer(secret), timeout=20)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


def channel_to(fleet: Fleet, service: str) -> grpc.aio.Channel:
    """A connection of its own, without retries."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    return grpc.aio.insecure_channel(fleet.processes[service][0].target, options)


def bearer(secret: str) -> list[tuple[str, str]]:
    """The header of a token."""
    return [("authorization", f"Bearer {secret}")]


async def measure(seconds: float, rotations: int) -> Rows:
    """All rows."""
    rows = Rows("credentials")
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        file = home / "tokens.toml"
        tokens = {role: token("new", role, "--role", role, "--file", file) for role in ROLES}
        for name, option in (("index", "--service"), ("science", "--corpus")):
            tokens[name] = token("new", name, "--role", "admin", option, name, "--file", file)
        tokens["expired"] = token("new", "expired", "--role", "admin", "--expires", "2020-01-01", "--file", file)
        tokens["revoked"] = token("new", "revoked", "--role", "admin", "--file", file)
        tokens["quick"] = token("new", "quick", "--role", "read", "--quota", f"{QUOTA}/s", "--file", file)
        wide = ["--quota", "1e5/s", "--token-quota", "1e8/s"]
        tokens["wide"] = token("new", "wide", "--role", "read", *wide, "--file", file)
        async with running(home, file) as fleet:
            token("revoke", "revoked", "--file", file)
            await price(rows, fleet, tokens["wide"])
            await quota(rows, fleet, tokens["quick"], seconds)
            await rotation(rows, fleet, file, rotations)
            await matrix(rows, fleet, tokens)
    return rows


def main() -> None:
    """Runs all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the quota is asked for too much")
    parser.add_argument("--rotations", type=int, default=4)
    options = parser.parse_args()
    run(measure(options.seconds, options.rotations)).finish()


if __name__ == "__main__":
    main()
