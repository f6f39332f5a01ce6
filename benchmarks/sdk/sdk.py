"""The command line and the wheels as a stranger meets them. `make bench NAME=sdk`.

    cli      CPU time of `aeenc --help`, `status` and `retrieve` over importing grpc, typer and rich; an index that only
             gives one answer stands in for the services
    wheel    both wheels in an empty environment: up, corpus, retrieve, down (benchmarks/sdk/wheel.py; a package index)

Loopback only but for `wheel`, no data; a minute. `--only PART` runs one part.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from aeenc.v1 import index_pb2, types_pb2
from benchmarks.harness.rows import Rows, run_parts
from benchmarks.sdk.wheel import wheel

ROUNDS = 15
COMMAND_LINE = "import sys; from aeenc.cli.entry import main; sys.argv = ['aeenc', *sys.argv[1:]]; main()"
NOBODY = [word for name in ("encoder", "index", "sampler", "trainer") for word in (f"--{name}", "127.0.0.1:1")]
HITS = 10


def command_line(rows: Rows, _: object) -> None:
    """How soon commands print, and their CPU time, taking turns with a process that only imports packages."""
    base: list[tuple[float, float]] = []
    with _answering() as index:
        commands = {
            "--help": ["--help"],
            "status, nobody there": [*NOBODY, "status"],
            "retrieve": ["--index", index, "retrieve", "corpus", "text"],
        }
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            base.append(_run(["-c", "import grpc, typer, rich"]))
            for name, words in commands.items():
                seconds[name].append(_run(["-c", COMMAND_LINE, *words]))
    first_s, cpu_s = map(statistics.median, zip(*base, strict=True))
    for name, taken in seconds.items():
        first, cpu = map(statistics.median, zip(*taken, strict=True))
        claim = f"aeenc {name}: first output over importing grpc, typer and rich"
        rows.at_most(claim, first / first_s, "x", 1.3, f"{first_s:.3f} s")
        rows.note(f"aeenc {name}: CPU time to its end over theirs", cpu / cpu_s, "x", f"{cpu_s:.3f} s")


@contextmanager
def _answering() -> Iterator[str]:
    """Serves Retrieve of an index of a few premises; yields its address."""
    premises = [types_pb2.Premise(id=f"p{number}", text=f"premise {number}") for number in range(HITS)]
    ranked = [types_pb2.RankedPremise(premise=one, score=0.5) for one in premises]
    answer = index_pb2.RetrieveResponse(
        results=[index_pb2.RetrievedPremises(premises=ranked)], model_version="m", space_id="s", generation="g"
    )
    retrieve = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer.SerializeToString())
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_registered_method_handlers("aeenc.v1.IndexService", {"Retrieve": retrieve})
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def _run(words: list[str]) -> tuple[float, float]:
    """Runs Python; returns the seconds to its first output, or its end, and the CPU time of the process."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first_s = time.perf_counter() - begun
        process.stdout.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return first_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    run_parts("sdk", __doc__, {"cli": command_line, "wheel": wheel})
