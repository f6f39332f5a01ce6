"""The SDK: what importing it, its commands and its blocking calls cost. `make bench NAME=sdk`.

    start    `import aeenc; aeenc.connect()` over importing what it stands on
    cli      CPU time of `aeenc --help`, `status` and `retrieve` over importing grpc, typer and rich
    blocking what a blocking call of Retrieve adds to the raw stub's
    wheel    both wheels in an empty environment: up, corpus, retrieve, down (benchmarks/sdk/wheel.py; a package index)

Loopback only but for `wheel`, no data; three minutes. `--only PART` runs one part.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

import aeenc
from aeenc.v1 import index_pb2, index_pb2_grpc
from benchmarks.harness.rows import Rows
from benchmarks.sdk.wheel import wheel

ROUNDS = 15
CALLS = 2_000
STOOD_ON = "import grpc.aio, google.protobuf.message, google.rpc.status_pb2, numpy"
OURS = "import aeenc; client = aeenc.connect()"
USED = f"{OURS}; client.index"  # what a first call adds before it is sent
COMMAND_LINE = "import sys; from aeenc.cli.entry import main; sys.argv = ['aeenc', *sys.argv[1:]]; main()"
NOBODY = [word for name in ("encoder", "index", "sampler", "trainer") for word in (f"--{name}", "127.0.0.1:1")]
COMMANDS = {
    "--help": ["--help"],
    "status": [*NOBODY, "status"],
    "retrieve": [*NOBODY, "retrieve", "corpus", "text"],
}
MEASURE = """
import resource, time
at = time.perf_counter()
{}
print(time.perf_counter() - at, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main() -> None:
    """Measures the parts and prints a row each."""
    parts = {
        "start": start,
        "cli": command_line,
        "blocking": calls,
        "wheel": wheel,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=parts, help="one part; its results get a name of their own")
    only = parser.parse_args().only
    rows = Rows(f"sdk-{only}" if only else "sdk")
    for name, part in parts.items():
        if only in {None, name}:
            part(rows)
    rows.finish()


def command_line(rows: Rows) -> None:
    """CPU time of commands, of which no service answers, taking turns with a process that only imports packages."""
    base: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        base.append(_cpu_s(["-c", "import grpc, typer, rich"]))
        for name, words in COMMANDS.items():
            seconds[name].append(_cpu_s(["-c", COMMAND_LINE, *words]))
    least = statistics.median(base)
    for name, taken in seconds.items():
        ratio = statistics.median(taken) / least
        rows.at_most(f"aeenc {name} over importing grpc, typer and rich", ratio, "x", 1.3, f"{least:.3f} s")


def _cpu_s(words: list[str]) -> float:
    """Runs Python, and returns the CPU time of the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start(rows: Rows) -> None:
    """Time and memory of a process that imports and connects, taking turns with one that imports the four packages."""
    seconds: dict[str, list[float]] = {STOOD_ON: [], OURS: [], USED: []}
    resident: dict[str, list[float]] = {STOOD_ON: [], OURS: [], USED: []}
    for _ in range(ROUNDS):
        for code in (STOOD_ON, OURS, USED):
            done = subprocess.run(
                [sys.executable, "-c", MEASURE.format(code)], capture_output=True, text=True, check=True
            )
            took, kib = done.stdout.split()
            seconds[code].append(float(took))
            resident[code].append(float(kib) / 1024)
    base, ours, used = (statistics.median(taken) for taken in seconds.values())
    rows.at_most("import aeenc; connect() over importing its packages", ours / base, "x", 1.25, f"{base:.3f} s")
    rows.note("the same and the first use of client.index", used / base, "x")
    base, ours, used = (statistics.median(taken) for taken in resident.values())
    rows.at_most("the same: memory added", ours - base, "MB", 8.0, f"{base:.0f} MB")
    rows.note("the same: memory added with client.index", used - base, "MB")


def calls(rows: Rows) -> None:
    """One caller of Retrieve: the blocking client and the blocking raw stub take turns over one server."""
    with served() as target:
        channel = grpc.insecure_channel(target)
        stub = index_pb2_grpc.IndexServiceStub(channel)
        request = index_pb2.RetrieveRequest(corpus="science", texts=["a magnet attracts an iron nail"], k=10)
        with aeenc.connect(index=target) as client:
            added, raw = [], []
            for _ in range(ROUNDS):
                ours = _p50(lambda: client.index.retrieve("science", ["a magnet attracts an iron nail"], k=10))
                theirs = _p50(lambda: stub.Retrieve(request, timeout=10))
                added.append(ours - theirs)
                raw.append(theirs)
        channel.close()
    rows.at_most(
        "blocking client over raw stub, retrieve: added p50",
        statistics.median(added) * 1e3,
        "ms",
        0.3,
        f"{statistics.median(raw) * 1e3:.3f} ms",
    )


def _p50(call: Any) -> float:
    taken = []
    for _ in range(CALLS // ROUNDS):
        at = time.perf_counter()
        call()
        taken.append(time.perf_counter() - at)
    return statistics.median(taken)


SERVER = """
import asyncio, grpc, sys
from aeenc.v1 import index_pb2, index_pb2_grpc

class Index(index_pb2_grpc.IndexServiceServicer):
    async def Retrieve(self, request, context):
        texts = [f"iron is metal number {n} that magnets attract" for n in range(10)]
        premises = [{"premise": {"id": text[:20], "text": text}, "score": 0.5} for text in texts]
        found = index_pb2.RetrievedPremises(premises=premises)
        return index_pb2.RetrieveResponse(results=[found], model_version="q", generation="g")

async def main():
    server = grpc.aio.server()
    index_pb2_grpc.add_IndexServiceServicer_to_server(Index(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


@contextmanager
def served() -> Iterator[str]:
    """An index in a process of its own that always gives the same answer."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
