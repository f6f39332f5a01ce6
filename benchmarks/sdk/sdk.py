"""The command line and the wheels as a stranger meets them. `make bench NAME=sdk`.

    cli      CPU time of `aeenc --help`, `status` and `retrieve` over importing grpc, typer and rich; an index that only
             gives one answer stands in for the services
    wheel    both wheels in an empty environment: up, corpus, retrieve, down (needs a package index)

Loopback only but for `wheel`, no data; a minute. `--only PART` runs one part.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from aeenc.v1 import index_pb2, types_pb2
from benchmarks.harness.rows import Rows, run_parts
from tools import release
from tools.pinned_venv import ROOT, PinnedVenv
from tools.setup import install_torch

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


LIMIT_S = 60.0
FACTS = {
    "f1": "a magnet attracts things that are made of iron",
    "f2": "a nail is made of iron",
    "f3": "ice is water that is frozen",
}


def wheel(rows: Rows, _: object) -> None:
    """Times the four commands after the installation, and what each takes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _install(root)
        facts = root / "facts.jsonl"
        facts.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in FACTS.items()))
        steps = {
            "up": ("up", "--base-port", "0"),
            "corpus": ("corpus", "build", "facts", "--facts", str(facts)),
            "retrieve": ("retrieve", "facts", "a magnet attracts an iron nail", "-k", "2"),
            "down": ("down",),
        }
        taken: dict[str, float] = {}
        found: set[str] = set()
        try:
            for name, arguments in steps.items():
                started = time.perf_counter()
                told = _aeenc(root, *arguments)
                taken[name] = time.perf_counter() - started
                if name == "retrieve":
                    found = {fact for fact in FACTS if f'"{fact}"' in told}
        finally:
            if "down" not in taken:
                _aeenc(root, "down")
    shares = ", ".join(f"{name} {seconds:.1f}" for name, seconds in taken.items())
    rows.add("two wheels: the premises found first", len(found & {"f1", "f2"}), "premises", "2", found == {"f1", "f2"})
    rows.at_most("two wheels: up, corpus, retrieve, down", sum(taken.values()), "s", LIMIT_S, shares)


def _install(root: Path) -> None:
    """Builds the last commit's wheels and installs them with what `aeenc up` needs; TORCH chooses its build."""
    tools = PinnedVenv.locked(ROOT / ".venv-release", release.LOCK)
    release.build(root / "wheels", tools, folders=("clients/python", "."))
    services, sdk = sorted((root / "wheels").glob("*.whl"), key=lambda path: "services" not in path.name)
    venv = PinnedVenv(root / "venv")
    venv.create()
    install_torch(venv, os.environ.get("TORCH", "torch==2.13.0"))
    venv.install("--compile", f"aeenc-services[one-machine] @ {services.as_uri()}", str(sdk))


def _aeenc(root: Path, *arguments: str) -> str:
    """Runs the installed command in a folder of its own, with nothing of this process but the search path."""
    place = root / "place"
    place.mkdir(exist_ok=True)
    environment = {"PATH": os.defpath, "HOME": str(root), "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        [str(root / "venv" / "bin" / "aeenc"), "--json", *arguments],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"aeenc {' '.join(arguments)} failed: {done.stderr or done.stdout}")
    return done.stdout


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
