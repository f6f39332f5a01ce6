"""Every command of `aeenc`, with every odd word for every argument and option, one at a time, in this process.

`python -m benchmarks.house.scan_commands` runs it beside the services that the environment names, in a folder of its
own, and prints what it found as JSON; `few` after it takes few words. A command that goes on, such as an oracle, is
interrupted. Those that start processes or measure for hours take their words and do nothing.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import typer

from aeenc.cli import main as command_line
from benchmarks.house.scan_values import Scanned
from support.small_trees import write_small_trees

GOES_ON_S = {"oracle": 0.1, "": 3.0}  # of a group, after which a command is interrupted
HALF_S = 5.0  # more than that is a command that hears no interruption
EXIT_CODES = {0, 2, 3, 4, 5, 130}  # 1 is an unexpected failure
SHELL = {"help", "install_completion", "show_completion"}  # what typer adds to a command
IDLE = {"up", "down", "demo", "backup", "restore", "tune", "tune-retrieval", "doctor", "data fetch"}
WORDS = {
    "empty": "",
    "blank": " \t",
    "non-ASCII": "é漢👩‍👩‍👧",
    "no UTF-8": "a\udcff",  # what Python makes of a byte that is none
    "line ends": "a\r\nb\u2028",
    "no path": "../x",
    "device": "/dev/null",
    "100 kB": "x" * 100_000,
    "option": "--nope",
    **{word: word for word in ("0", "-1", "9223372036854775808", "nan", "inf", "1e400", "true", "null", "{}")},
}
FEW = ("no UTF-8", "9223372036854775808", "100 kB")

# What the scan leaves where it interrupts a command: in a thread, or in a server that is collected later.
OWN_TRACES = ("KeyboardInterrupt", "Event loop is closed")


def scan_commands(names: Collection[str]) -> Scanned:
    """Runs all commands. It changes the working directory's files."""
    found = Scanned()
    root = typer.main.get_command(command_line.app)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    sound = _sound()
    for words, command in _commands(root, ()):
        title = " ".join(words)
        if title in IDLE:
            command.callback = _nothing
        limit_s = GOES_ON_S.get(words[0] if words else "", GOES_ON_S[""])
        for what, arguments in _arguments(command, names, sound):
            _run(found, root, [*words, *arguments], f"{title}: {what}", limit_s)
    for what, arguments in _arguments(root, names, sound):
        _run(found, root, [*arguments, "corpus", "list"], f"aeenc: {what}", GOES_ON_S[""])
    return found


def _nothing(**_: object) -> None:
    """Stands in for a command."""


def _sound() -> dict[str, str]:
    """What a required argument or option gets, by name; files lie in the working directory."""
    trees = write_small_trees(Path("trees"))
    return {"data": str(trees), "trees": str(trees), "corpus": "science", "name": "science", "to": "out", "out": "out"}


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield (*words, name), inner
        yield from _commands(inner, (*words, name))


def _arguments(command: Any, names: Collection[str], sound: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The words after a command's own: what it needs, and one of its parameters odd."""
    parameters = [one for one in command.params if one.name not in SHELL]
    needed = {one.name: _words(one, sound.get(one.name, "nope")) for one in parameters if one.required}
    yield "nothing odd", [word for words in needed.values() for word in words]
    for one in parameters:
        if getattr(one, "is_flag", False):
            yield f"{one.name} on", [word for words in {**needed, one.name: [one.opts[0]]}.values() for word in words]
            continue
        for label in names:
            words = {**needed, one.name: _words(one, WORDS[label])}
            yield f"{one.name} is {label}", [word for some in words.values() for word in some]


def _words(parameter: Any, value: str) -> list[str]:
    return [value] if parameter.param_type_name == "argument" else [parameter.opts[-1], value]


def _run(found: Scanned, root: Any, words: Sequence[str], what: str, limit_s: float) -> None:
    """Runs one command as its script does, and judges how it ended."""
    code, crash = 0, ""
    with _streams() as stderr:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            root.main(args=list(words), prog_name="aeenc")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except KeyboardInterrupt:
            code = command_line.INTERRUPTED
        except BaseException as error:  # noqa: BLE001 -- a traceback, if this were a process
            place = traceback.extract_tb(error.__traceback__)[-1]
            code, crash = 1, f"{type(error).__name__} at {place.filename}:{place.lineno}: {error!s:.100}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        stderr.flush()
        told = stderr.buffer.getvalue().decode(errors="replace")
    has_trace = "Traceback" in told and not any(trace in told for trace in OWN_TRACES)
    bad = crash or (told[-300:] if has_trace else "")
    if not bad and code not in EXIT_CODES:
        bad = f"exit {code}: {told[-200:]}"
    found.ended(f"exit {code}", f"{what.partition(' is ')[0]} {str(bad)[:60]} | {what}: {bad}" if bad else "")


@contextmanager
def _streams() -> Iterator[Any]:
    """Takes what a command prints, as its script has the streams: nothing typed, and stderr is yielded."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield err
    finally:
        sys.stdin = stdin


def main() -> None:
    """Scans in a new folder; prints JSON."""
    gc.disable()  # freeing the server of an interrupted command waits for grpc's thread without end
    with tempfile.TemporaryDirectory(prefix="aeenc-scan-") as folder:
        (inner := Path(folder) / "a" / "b").mkdir(parents=True)
        os.chdir(inner)
        found = scan_commands(FEW if sys.argv[1:] == ["few"] else tuple(WORDS))
        os.chdir("/")
    print(json.dumps(vars(found)), flush=True)
    os._exit(0)  # which frees none, either


if __name__ == "__main__":
    main()
