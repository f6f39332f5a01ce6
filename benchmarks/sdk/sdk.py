"""The command line and the wheels as a stranger meets them. `make bench NAME=sdk`.

    cli      CPU time of `aeenc --help`, `status` and `retrieve` over importing grpc, typer and rich
    wheel    both wheels in an empty environment: up, corpus, retrieve, down (benchmarks/sdk/wheel.py; a package index)

Loopback only but for `wheel`, no data; a minute. `--only PART` runs one part.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

from benchmarks.harness.rows import Rows
from benchmarks.sdk.wheel import wheel

ROUNDS = 15
COMMAND_LINE = "import sys; from aeenc.cli.entry import main; sys.argv = ['aeenc', *sys.argv[1:]]; main()"
NOBODY = [word for name in ("encoder", "index", "sampler", "trainer") for word in (f"--{name}", "127.0.0.1:1")]
COMMANDS = {
    "--help": ["--help"],
    "status": [*NOBODY, "status"],
    "retrieve": [*NOBODY, "retrieve", "corpus", "text"],
}


def main() -> None:
    """Measures the parts and prints a row each."""
    parts = {
        "cli": command_line,
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


if __name__ == "__main__":
    main()
