"""Exit codes and error lines: each class of failure has one code, one line for people and one object for programs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aeenc import errors
from aeenc.cli.main import exit_code_of
from aeenc.transport.status import _CLASSES


@pytest.fixture
def nobody():
    """An address at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.InvalidArgument("epochs: is 101; give 1 to 100"), 2),
        (errors.TooLarge("texts: 2,000; at most 1,024"), 2),
        (errors.NotFound("no run 'r1'"), 2),
        (errors.Unauthenticated("no credential"), 2),
        (errors.PermissionDenied("not yours"), 2),
        (errors.FailedPrecondition("no positives", reason="NO_POSITIVES"), 4),
        (errors.SpaceMismatch("another space"), 4),
        (errors.VersionNotLoaded("label 'stabel' names nothing here (there are: stable)"), 2),
        (errors.Aborted("the label has moved"), 4),
        (errors.AlreadyExists("the key is taken"), 4),
        (errors.DataLoss("a file is broken"), 5),
        (errors.AeencError("unexpected"), 1),
    ],
)
async def test_a_services_error_becomes_its_exit_code_and_one_line(aeenc, fleet, failure, code):
    fleet.trainer.failure = failure
    ended = await aeenc("train", "science", "--run", "r1")
    assert (ended.code, ended.stdout) == (code, "")
    assert ended.stderr == f"error: {failure.message}\n"
    ended = await aeenc("--json", "train", "science", "--run", "r1")
    assert (ended.code, ended.stdout) == (code, "")
    assert ended.error == {"status": failure.code, "message": failure.message}


async def test_a_service_that_is_away_or_busy_is_exit_code_3(aeenc, fleet, nobody):
    ended = await aeenc("--index", nobody, "--timeout", 0.3, "retrieve", "science", "ice")
    assert ended.code == 3
    assert nobody in ended.stderr
    assert exit_code_of(errors.DeadlineExceeded("late")) == 3
    fleet.trainer.failure = errors.Overloaded("busy", retry_after_s=60)
    assert (await aeenc("--timeout", 0.3, "train", "science", "--run", "r")).code == 3


async def test_another_service_at_the_address_is_wrong_use(aeenc, fleet):
    encoder = fleet.encoder_target
    ended = await aeenc("--index", encoder, "retrieve", "science", "ice")
    assert (ended.code, ended.stdout) == (2, "")
    assert f"{encoder} answers, but has no aeenc.v1.IndexService/Retrieve" in ended.stderr
    assert "--index or AEENC_INDEX" in ended.stderr
    assert "(request" not in ended.stderr  # no log has it


async def test_publishing_at_an_absent_registry_does_not_wait_for_the_rollout(aeenc, nobody):
    started = time.monotonic()
    assert (await aeenc("--trainer", nobody, "--timeout", 0.3, "publish", "q1", "--wait", 60)).code == 3
    assert (await aeenc("--trainer", nobody, "--timeout", 0.3, "rollback")).code == 3
    assert time.monotonic() - started < 30


def test_every_class_of_error_has_an_exit_code():
    assert {exit_code_of(cls("x")) for cls in _CLASSES} <= {1, 2, 3, 4, 5}


COLUMNS = (("--format", "csv"), ("--id-column", "number"), ("--text-column", "body"))
BUILD, ONE_SOURCE = ("corpus", "build", "science"), "give either --data DIR or --facts FILE"
TASK3 = ("export", "task3", "science", "--data", "{trees}", "--to", "x")
SAMPLE = Path(__file__).parents[2] / "data" / "sample"
WRONG_USE = (
    ((), "Missing command"),
    (("nonsense",), "No such command 'nonsense'"),
    (("corpus", "mend"), "No such command 'mend'"),
    (("--timeout", "soon", "status"), "'--timeout'"),
    (("--ca", "{tmp}/none.pem", "retrieve", "science", "ice"), "none.pem"),
    (("retrieve",), "Missing argument"),
    (("retrieve", "nothing", "ice"), "unknown"),
    (("retrieve", "science", ""), "give a sentence"),
    (("retrieve", "science", "ice", "-k", "many"), "'-k'"),
    (("retrieve", "science", "ice", "-k", "5000"), "1 to 1,000"),
    (("retrieve", "science", "ice", "--label", "stable", "--version", "q1"), "give one"),
    ((*BUILD,), ONE_SOURCE),
    ((*BUILD, "--facts", "{trees}", "--data", "{trees}"), ONE_SOURCE),
    ((*BUILD, "--facts", "{tmp}/none.txt"), "none.txt"),
    ((*BUILD, "--data", "{tmp}"), "dataset/task_1"),
    (("corpus", "build", "a/b", "--data", "{trees}"), "not a corpus name"),
    *(
        ((*words, *option), "--format, --id-column and --text-column go with --facts")
        for words in ((*BUILD, "--data", "{trees}"), ("corpus", "repair", "science"))
        for option in COLUMNS
    ),
    (("sample", "science", "--data", "no-such-folder"), "no-such-folder"),
    (("sample", "science", "--data", "{trees}", "--oracle", "fake", "--split", "test"), "'test'"),
    (("train", "science", "--run", "r", "--loss", "hinge"), "'hinge'"),
    (("publish", "q1", "--label", "canary", "--share", "2"), "'--share'"),
    (("loop", "science", "--data", "{trees}", "--collect", "nothing"), "'nothing'"),
    (("loop", "science", "--data", "{trees}", "--batching", "nothing"), "'nothing'"),
    (("oracle", "gold", "--trees", "{trees}", "--split", "nothing"), "it has train, dev"),
    (("tasks", "r", "--state", "nosuch"), "'--state': 'nosuch' is not one of 'waiting'"),
    (("--tls", "--index", "unix:/run/a.sock", "retrieve", "science", "ice"), "tls: is on, and unix:"),
    (("tune-retrieval", "{tmp}"), "aeenc export folds"),
    (("tune-retrieval", str(SAMPLE)), f"{SAMPLE} has no folds, which are directories with"),
    (("evaluate", "--data", "{trees}", "--conditioned", "--run", "x"), "--conditioned"),
    (("evaluate", "--data", "{trees}", "--lexical-weight", "0.5"), "add --mode hybrid"),  # it is not ignored
    (("evaluate", "--data", f"{SAMPLE}/textgraphs", "--by", "depth"), "needs trees"),
    (("evaluate", "--data", "{trees}", "--features", '{{"rank": 1}}'), "--features"),
    *(
        (("evaluate", "--data", "{trees}", "--mode", "hybrid", "--features", text), "--features")
        for text in ("words", "[1]", '{{"rank": "1"}}', '{{"rank": ' + "[" * 100_000, '{{"rank": 1, "rank": 2}}')
    ),
    ((*TASK3, "--label", "a", "--version", "b"), "give one"),
    ((*TASK3, "--features", "{{}}", "--mode", "lexical"), "--mode hybrid"),
    ((*TASK3, "--split", "none"), "no split 'none'"),
    (("oracle", "composite", "--trees", "{trees}"), "at least two"),
    (("oracle", "model", "{tmp}/empty"), "config.json"),
    *((("oracle", "gold", "--trees", "{trees}", one, "{tmp}/latin"), "cert and key") for one in ("--cert", "--key")),
    (("oracle", "gold", "--trees", "{trees}", "--cert", "{tmp}/latin", "--key", "{tmp}/latin"), "cannot be used"),
    (
        ("oracle", "llm", "--base-url", "http://x", "--model", "m", "--template", "{tmp}/latin"),
        "latin:1: byte 2 is not UTF-8",
    ),
)


async def test_wrong_use_is_exit_code_2_and_one_object_for_a_program(aeenc, fleet, trees, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").write_bytes("né".encode("latin-1"))
    for given, said in WRONG_USE:
        words = [word.format(tmp=tmp_path, trees=trees) for word in given]
        ended = await aeenc(*words)
        assert (ended.code, ended.stdout, "Traceback" in ended.stderr) == (2, "", False), given
        assert ended.stderr, given
        ended = await aeenc(*words, "--json")
        assert (ended.code, ended.stdout) == (2, ""), given
        error = json.loads(ended.stderr)["error"]
        assert error["status"] in {"INVALID_ARGUMENT", "NOT_FOUND"}, given
        assert said in error["message"], (given, error)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("corpus", "build", "science", "--facts", "f" * 300), 2, "File name too long"),
        (("export", "trees", "--data", "{trees}", "--split", "dev", "--to", "/dev/full"), 3, "No space left"),
        (("export", "trees", "--data", "{trees}", "--split", "dev", "--to", "{trees}/dataset"), 2, "directory"),
    ],
)
async def test_what_the_system_refuses_is_said_in_one_line(aeenc, fleet, trees, words, code, said):
    ended = await aeenc(*(word.format(trees=trees) for word in words))
    assert ended.code == code, ended.stderr
    [line] = ended.stderr.splitlines()[-1:]
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize(
    "words",
    [
        ("export", "trees", "--data", "{trees}", "--split", "dev", "--to", "{to}"),
        ("export", "trees", "--data", "{trees}", "--split", "dev", "--as", "svg", "--to", "{to}"),
        ("export", "folds", "--data", "{trees}", "--split", "dev", "--folds", "2", "--to", "{to}"),
        ("fuse", "{run}", "{run}", "--out", "{to}"),
        ("loop", "trees", "--data", "{trees}", "--journal", "{to}"),
        ("token", "new", "ann", "--role", "read", "--file", "{to}"),
        ("oracle", "llm", "--base-url", "http://127.0.0.1:1", "--model", "m", "--cache", "{to}"),
        ("oracle", "composite", "--trees", "{trees}", "--remote", "127.0.0.1:1", "--audit-log", "{to}"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
async def test_what_cannot_be_written_is_named(aeenc, trees, tmp_path, words):
    (tmp_path / "run").write_text("q Q0 p 1 0.5 t\n")
    places = ["/proc/none", "/proc/none/x", tmp_path / "run" / "x", tmp_path]
    for to in places if "--audit-log" in words else ["/dev/full", *places]:  # a log is full only when it is written
        ended = await aeenc(*(word.format(trees=trees, run=tmp_path / "run", to=to) for word in words))
        line = ended.stderr.splitlines()[-1]
        assert (ended.code in {2, 3, 4}, line.startswith("error: ")) == (True, True), (to, ended)
        assert str(to).removesuffix("/x").removesuffix("none") in line, to


def test_a_full_standard_output_is_said_in_one_line(trees):
    words = [sys.executable, "-m", "aeenc.cli.main", "export", "trees", "--data", trees, "--to", trees / "to"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert ended.returncode == 3, ended.stderr
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_malformed_tree_is_named_by_file_and_line(aeenc, trees):
    path = trees / "dataset" / "task_1" / "dev.jsonl"
    path.write_text(path.read_text() + "{\n")
    ended = await aeenc("--json", "corpus", "build", "trees", "--data", trees)
    assert ended.code == 2
    assert ended.error["message"].startswith(f"{path}:2:")


async def test_help_lists_the_exit_codes(aeenc):
    ended = await aeenc("--help")
    assert ended.code == 0
    for words in ("0 done", "2 wrong use", "3 a service cannot be reached", "5 long work ended badly"):
        assert words in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("retrieve", "science", "ice"), ""),
        (("follow", "j7"), "interrupted; this ends no run and no job; to follow it again: aeenc follow j7\n"),
        (("loop", "science", "--data", "TREES"), "interrupted; the same command goes on where this one was\n"),
    ],
)
def test_ctrl_c_ends_a_command_with_130_and_of_long_work_it_says_how_to_go_on(tmp_path, trees, words, said):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "aeenc.cli.main", "--sampler", at, "--trainer", at, "--index", at]
        command += [str(trees) if word == "TREES" else word for word in words]
        environment = {**os.environ, "AEENC_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            silent.settimeout(20)
            connection, _ = silent.accept()  # the call is under way, and will never be answered
            with connection:
                process.send_signal(signal.SIGINT)
                _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr[-len(said) :] if said else stderr) == (130, said)


# A signal does not wake a main thread that is just on its way into a wait; neither does one that another thread gets.
MISSED = """
import asyncio, os, signal, threading
from aeenc.transport.sync import LOOP
LOOP.get()
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    LOOP.run(asyncio.sleep(600))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_wait_whose_thread_it_does_not_wake():
    command = [sys.executable, "-c", MISSED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_an_sdk_without_the_command_line_says_what_to_install():
    told = "import sys; sys.modules['typer'] = None; from aeenc.cli.entry import main; main()"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("the command line needs typer: pip install './clients/python[cli]' (in a checkout)\n")
