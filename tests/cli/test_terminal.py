"""`aeenc oracle terminal` and what belongs to it: a person with nine keys, conflicts, figures of agreement."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

import aeenc as sdk
from aeenc.cli.terminal import END, ESCAPE, HELP, JudgingSession, Keys
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, UNSEEN
from aeenc.v1 import people_pb2, types_pb2
from services.kit.credentials.credential_file import Credential, HashedToken, hash_of, render
from services.sampler.__main__ import build
from support.command import running
from support.waiting import eventually
from support.worlds.sampler_world import SamplerWorld, nearest

PATIENT = "from aeenc.cli import terminal; terminal.RELEASE_S = 30.0"  # tasks are given back on a busy machine, too
COMMAND = [sys.executable, "-c", f"{PATIENT}; from aeenc.cli.main import main; main()"]
QUEUE = {"undo_s": 0.0, "first_lease_s": 30.0}
SIGNS = {EXPLAINS: "+", REFUSES: "-", ABSTAINS: "?", UNSEEN: "."}


class Typed:
    """Keys that were typed beforehand; `\\x00` ends the session."""

    def __init__(self, keys: str) -> None:
        self._keys: Iterator[str] = iter(keys)

    def key(self, timeout_s: float | None = None) -> str | None:
        return next(self._keys, "")


@asynccontextmanager
async def queued(world: SamplerWorld, count: int = 2, **queue: object) -> AsyncIterator[tuple[sdk.SamplerClient, str]]:
    """A run of some hypotheses with twelve candidates each in the queue `team`."""
    async with world.sampler(queues={"team": {**QUEUE, **queue}}) as sampler:
        roots = [(f"tree-{n}", f"hypothesis {n}") for n in range(count)]
        run = await sampler.start_run(roots, corpus="science", oracle="team", k=12, max_depth=0)

        async def waits() -> bool:
            return len([t async for t in sdk.PeopleClient(sampler.channel).list_tasks(run.id)]) == count

        await eventually(waits)
        yield sampler, run.id


async def judge(
    target: str, run_id: str, keys: str, name: str = "ann", *, index: str = "127.0.0.1:1", token: str | None = None
) -> tuple[int, list[str]]:
    """Types keys at a session without waiting; the answers given and the screens shown."""
    screens: list[str] = []

    def show(screen: RenderableType) -> None:
        console = Console(width=100, record=True, file=StringIO())
        console.print(screen)
        screens.append(console.export_text())

    def work() -> int:
        with sdk.connect(sampler=target, index=index, token=token) as client:
            return JudgingSession(client, name, run_id, Typed(keys), show, wait=False).work()  # type: ignore[arg-type]

    return await asyncio.to_thread(work), screens


async def said(sampler: sdk.SamplerClient, run_id: str) -> list[str]:
    """What each task's only answer says, a sign a candidate in the order of ranks."""
    shown = []
    async for task in sdk.PeopleClient(sampler.channel).list_tasks(run_id):
        for answer in task.answers:
            by_id = {v.premise_id: SIGNS[v.judgement] + ("l" if v.leaf else "") for v in answer.verdicts}
            shown.append("".join(by_id[c.premise.id] for c in task.task.candidates))
    return shown


async def test_keys_tick_confirm_and_leave_what_was_not_shown_unseen(world: SamplerWorld):
    async with queued(world, 3) as (sampler, run_id):
        answered, screens = await judge(sampler.channel.target, run_id, "134" + "3" + "\n" + "n2l3\n" + " ")
        assert answered == 3
        assert await said(sampler, run_id) == ["+--+-----...", "-" * 10 + "++l", "?" * 12]
        assert "Which of these explain: hypothesis 0" in screens[0]
        assert HELP.split()[0] in screens[0]
        assert "page 2 of 2" in "".join(screens)


def test_keys_that_send_several_bytes_are_none_of_the_digits_in_them():
    reader, writer = os.pipe()
    sequences = {"page down": "\x1b[6~", "F5": "\x1b[15~", "up": "\x1b[A", "F1": "\x1bOP", "F1 of a console": "\x1b[[A"}
    os.write(writer, "".join(f"{sequence}2" for sequence in sequences.values()).encode() + "é\x1bq\x1b".encode())
    os.close(writer)
    keys = Keys(reader)
    read = [keys.key() for _ in range(2 * len(sequences) + 5)]
    os.close(reader)
    assert read == [*[None, "2"] * len(sequences), "é", ESCAPE, "q", ESCAPE, END]


async def test_a_sign_that_counts_as_a_digit_elsewhere_ticks_nothing(world: SamplerWorld):
    async with queued(world, 1) as (sampler, run_id):
        keys = "²1" + "/ice\n²\n" + "\n"
        answered, _ = await judge(sampler.channel.target, run_id, keys, index=world.settings["index_target"])
        assert (answered, await said(sampler, run_id)) == (1, ["+--------..."])


async def test_what_a_search_finds_and_what_a_person_writes_goes_with_the_answer(aeenc, world: SamplerWorld):
    async with queued(world, 1) as (sampler, run_id):
        keys = "1" + "/ice" + "\n" + "12" + "1" + "\n" + "/x\x1b" + "wé fx\x7f" + "act\n" + "iso it is\n" + "\n"
        answered, screens = await judge(sampler.channel.target, run_id, keys, index=world.settings["index_target"])
        assert answered == 1
        [task] = [one async for one in sdk.PeopleClient(sampler.channel).list_tasks(run_id)]
        [answer] = task.answers
        shown = [candidate.premise.id for candidate in task.task.candidates]
        found = [premise_id for premise_id, text, _ in nearest("ice", 60) if premise_id not in shown]
        assert [one.premise_id for one in answer.additions] == [found[1]]
        assert answer.written == ("é fact",)
        assert answer.intermediates == ("so it is",)
        assert any("added: fact" in screen for screen in screens)
        listed = (await aeenc("--sampler", sampler.channel.target, "tasks", run_id)).stdout
        assert f"{found[1]}  {answer.additions[0].text}  (added by ann)" in listed
        assert "é fact  (written by ann)" in listed


async def test_a_session_waits_for_a_sampler_that_is_away_and_keeps_its_ticks(world: SamplerWorld):
    loop, queues = asyncio.get_running_loop(), {"team": QUEUE}
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(world.sampler(queues=queues))
        port = int(first.channel.target.rpartition(":")[2])
        run = await first.start_run([("tree", "hypothesis 0")], corpus="science", oracle="team", k=12, max_depth=0)

        async def waits() -> bool:
            return bool([task async for task in sdk.PeopleClient(first.channel).list_tasks(run.id)])

        await eventually(waits)

        class Interrupted(Typed):
            """The sampler ends before the answer is confirmed, and comes back while the session waits."""

            is_away = False

            def key(self, timeout_s: float | None = None) -> str | None:
                if timeout_s is None:
                    key = super().key()
                    if key == "\n":
                        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(20)
                        self.is_away = True
                    return key
                if self.is_away:  # else a call was only late
                    back = stack.enter_async_context(world.sampler(queues=queues, port=port))
                    self.back = asyncio.run_coroutine_threadsafe(back, loop).result(20)
                    self.is_away = False
                return None

        keys = Interrupted("13" + "\n")

        def work() -> int:
            with sdk.connect(sampler=first.channel.target, timeout_s=5) as client:
                return JudgingSession(client, "ann", run.id, keys, lambda _: None, wait=False).work()  # type: ignore[arg-type]

        assert await asyncio.to_thread(work) == 1
        assert await said(keys.back, run.id) == ["+-+------..."]


async def test_undo_brings_the_last_task_back_as_it_was_ticked(world: SamplerWorld):
    async with queued(world, 2, undo_s=3600.0) as (sampler, run_id):
        answered, screens = await judge(sampler.channel.target, run_id, "1\n" + "u" + "2\n" + "9\n")
        assert answered == 2
        assert await said(sampler, run_id) == ["++-------...", "--------+..."]
        assert any("1 [ ok ]" in screen and "hypothesis 0" in screen for screen in screens[3:])


async def test_a_person_lets_the_run_go_on_and_sees_tree_and_queue(aeenc, world: SamplerWorld):
    async with queued(world, 2, undo_s=3600.0) as (sampler, run_id):
        target = ("--sampler", sampler.channel.target)
        before = (await aeenc(*target, "--json", "tree", run_id, "tree-0")).json
        assert (before["finished"], [node["state"] for node in before["nodes"]]) == (False, ["open"])
        numbers = (await aeenc(*target, "--json", "queues", "--annotator", "ann")).json["queues"]
        assert [(row["queue"], row["run"], row["free"]) for row in numbers] == [("team", "", 2), ("team", run_id, 2)]
        answered, screens = await judge(sampler.channel.target, run_id, "g" + "1\n" + "g")
        assert answered == 1
        assert "Nothing to go on with" in "".join(screens)
        shown = (await aeenc(*target, "queues", "--annotator", "ann")).stdout
        assert run_id in shown
        assert "ann in queue team: 1 answers, 1 in the last hour" in shown
        assert max(map(len, shown.splitlines())) <= 80

        async def went_on() -> bool:
            return (await sampler.get_run(run_id)).progress.nodes_judged == 1

        await eventually(went_on)
        task = await anext(sdk.PeopleClient(sampler.channel).list_tasks(run_id))
        drawn = (await aeenc(*target, "tree", run_id, "tree-0")).stdout
        assert "hypothesis 0" in drawn
        assert task.task.candidates[0].premise.text in drawn


async def test_a_person_has_the_task_on_the_screen_ranked_again(world: SamplerWorld):
    async with queued(world, 1, undo_s=3600.0) as (sampler, run_id):
        world.index.stable = "version-2"
        answered, screens = await judge(sampler.channel.target, run_id, "rr" + "1\n")
        assert answered == 1
        assert any("Ranked again by version-2" in screen for screen in screens)
        assert any("No newer encoder" in screen for screen in screens)
        tasks = [task async for task in sdk.PeopleClient(sampler.channel).list_tasks(run_id) if task.answers]
        assert [task.task.model_version for task in tasks] == ["version-2"]


async def test_tasks_are_retrieved_again_and_the_trail_says_who_asked(aeenc, world: SamplerWorld):
    async with queued(world, 2) as (sampler, run_id):
        target = ("--sampler", sampler.channel.target)
        world.index.stable = "version-2"
        tried = (await aeenc(*target, "--json", "retrieve-again", run_id, "--dry-run")).json
        assert (tried["version"], len(tried["tasks"])) == ("version-2", 2)
        assert "no changes" in (await aeenc(*target, "changes", run_id)).stdout
        done = (
            await aeenc(*target, "--json", "retrieve-again", run_id, "--annotator", "ann", "--hypothesis", "tree-1")
        ).json
        assert len(done["tasks"]) == 1
        [change] = (await aeenc(*target, "--json", "changes", run_id)).json["changes"]
        assert (change["change"], change["person"], change["detail"]) == ("withdrawn", "ann", "version-2")
        assert change["task"] in done["tasks"]
        shown = (await aeenc(*target, "changes", run_id)).stdout
        assert change["task"] in shown
        assert f"{datetime.fromisoformat(change['at']).astimezone():%Y-%m-%d %H:%M:%S}" in shown


async def test_what_can_no_longer_be_undone_is_said(world: SamplerWorld):
    async with queued(world, 2) as (sampler, run_id):
        people = sdk.PeopleClient(sampler.channel)
        answered, screens = await judge(sampler.channel.target, run_id, "u" + "\n", "ann")
        assert answered == 1
        assert "Nothing to undo" in "".join(screens)

        async def gone() -> bool:
            return bool([t async for t in people.list_tasks(run_id, state=people_pb2.TASK_STATE_SETTLED)])

        await eventually(gone)


async def test_quitting_and_skipping_give_tasks_back(world: SamplerWorld):
    async with queued(world, 2) as (sampler, run_id):
        answered, screens = await judge(sampler.channel.target, run_id, "s" + "q")
        assert answered == 0
        assert "hypothesis 1" in screens[-1]
        people = sdk.PeopleClient(sampler.channel)
        assert len(await people.lease("bob", run_id=run_id, max_tasks=2)) == 2


async def test_a_person_judges_in_a_real_terminal(world: SamplerWorld):
    async with queued(world, 1) as (sampler, run_id):
        parent, child = pty.openpty()
        words = ["--sampler", sampler.channel.target, "oracle", "terminal", "--run", run_id, "--annotator", "ann"]
        environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
        pipes = {"stdin": child, "stdout": subprocess.PIPE, "stderr": child}
        with running([*COMMAND, *words], **pipes, text=True, env=environment) as process:
            os.close(child)
            shown = ""
            while "Which of these explain" not in shown:
                shown += (await asyncio.to_thread(os.read, parent, 4096)).decode()
            os.write(parent, b"\x1b[6~2\r")  # PageDown ticks nothing
            draining = asyncio.create_task(asyncio.to_thread(_drain, parent))
            output, _ = await asyncio.to_thread(process.communicate)
            await draining
        os.close(parent)
        assert process.returncode == 0
        assert "ann has answered 1" in output
        assert await said(sampler, run_id) == ["-+-------..."]
        assert (await sampler.get_run(run_id)).state == types_pb2.WORK_STATE_SUCCEEDED


async def test_an_answer_that_is_refused_stays_on_the_screen_and_can_be_corrected(world: SamplerWorld):
    async with queued(world, 1) as (sampler, run_id):
        own_words = "ihypothesis 0\n"  # a conclusion that leads back to the query
        answered, screens = await judge(sampler.channel.target, run_id, f"1{own_words}\n")
        assert answered == 0
        [shown] = [screen for screen in screens if "Not taken: " in screen]
        assert "[ ok ]" in shown, "what was ticked is still there"
        people = sdk.PeopleClient(sampler.channel)
        assert len(await people.lease("bob", run_id=run_id)) == 1, "the task was given back"


async def test_lines_of_a_pipe_judge_nothing(world: SamplerWorld):
    async with queued(world, 1) as (sampler, run_id):
        words = ["--sampler", sampler.channel.target, "oracle", "terminal", "--run", run_id, "--no-wait"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with running([*COMMAND, *words], **pipes, text=True, env=environment) as process:
            _, told = await asyncio.to_thread(process.communicate, "\n")
        assert process.returncode == 4, told
        assert "no terminal" in told
        assert await said(sampler, run_id) == []


async def test_ctrl_c_gives_the_task_back(world: SamplerWorld):
    async with queued(world, 1) as (sampler, run_id):
        parent, child = pty.openpty()
        words = ["--sampler", sampler.channel.target, "oracle", "terminal", "--run", run_id, "--annotator", "ann"]
        environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
        with running([*COMMAND, *words], stdin=child, stdout=child, stderr=child, env=environment) as process:
            os.close(child)
            shown = ""
            while "Which of these explain" not in shown:
                shown += (await asyncio.to_thread(os.read, parent, 4096)).decode()
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(_drain, parent)
            assert await asyncio.to_thread(process.wait) == 130
        os.close(parent)
        assert len(await sdk.PeopleClient(sampler.channel).lease("bob", run_id=run_id)) == 1


def _drain(descriptor: int) -> None:
    """Reads what a terminal shows until nobody writes to it any more."""
    try:
        while os.read(descriptor, 4096):
            pass
    except OSError:  # Linux's way to say that the other side is closed
        pass


async def test_conflicts_are_listed_decided_and_agreement_is_told(aeenc, world: SamplerWorld):
    async with queued(world, 1, overlap=2) as (sampler, run_id):
        target = ("--sampler", sampler.channel.target)
        for name, keys in (("ann", "1\n"), ("bob", "2\n")):
            await judge(sampler.channel.target, run_id, keys, name)
        listed = await aeenc(*target, "--json", "tasks", run_id, "--state", "conflict")
        [task] = listed.json["tasks"]
        assert [c["said"] for c in task["conflicts"]] == [
            "ann: explains, bob: does not explain",
            "ann: does not explain, bob: explains",
        ]
        told = await aeenc(*target, "--json", "agreement", run_id)
        assert (told.json["candidates"], told.json["annotators"]) == (9, 2)
        assert told.json["krippendorff_alpha"] < 0.5
        assert {report["annotator"]: report["answers"] for report in told.json["reports"]} == {"ann": 1, "bob": 1}
        assert "annotators compared" in (await aeenc(*target, "agreement", run_id)).stdout
        first, second = (c["id"] for c in task["conflicts"])
        decide = (*target, "--json", "adjudicate", run_id, task["task"], "--explains", first)
        assert (await aeenc(*decide)).code == 2
        assert (await aeenc(*decide, "--refuses", first)).code == 2
        assert (await aeenc(*decide, "--refuses", second, "--adjudicator", "judge")).code == 0
        await asyncio.wait_for(sampler.wait(run_id), 40)
        shown = await aeenc(*target, "tasks", run_id)
        assert "SETTLED" in shown.stdout
        assert (
            json.loads((await aeenc(*target, "--json", "tasks", run_id)).stdout)["tasks"][0]["adjudicator"] == "judge"
        )


@pytest.mark.parametrize("words", [("tasks", "x"), ("agreement", "x"), ("oracle", "terminal", "--run", "x")])
async def test_an_unknown_run_is_wrong_use(aeenc, world: SamplerWorld, words):
    async with world.sampler() as sampler:
        assert (await aeenc("--sampler", sampler.channel.target, *words)).code == 2


@pytest.mark.parametrize("name", ["=2", "team=0", "team=x", "team=101"])
async def test_a_queue_with_a_wrong_number_of_people_is_refused_before_anything_starts(aeenc, name: str):
    ended = await aeenc("--json", "up", "--people", name)
    assert (ended.code, repr(name) in ended.error["message"]) == (2, True)


async def test_a_task_is_closed_at_the_terminal_and_by_a_command(world: SamplerWorld, aeenc):
    async with queued(world, 2, overlap=2) as (sampler, run_id):
        answered, _ = await judge(sampler.channel.target, run_id, "1\n")
        assert answered == 1
        people = sdk.PeopleClient(sampler.channel)
        [waiting] = [task async for task in people.list_tasks(run_id) if not task.answers]
        await judge(sampler.channel.target, run_id, "c", "ben")
        words = ("--sampler", sampler.channel.target, "--json", "close", run_id, waiting.task.task_id)
        closed = await aeenc(*words, "--reason", "ben has left")
        assert closed.code == 0, closed.stderr
        assert (await sampler.wait(run_id)).progress.nodes_judged == 2
        found = [pair async for pair in sampler.list_pairs(run_id)]
        undecided = Counter(pair.query == waiting.task.query for pair in found if pair.reason == "undecided")
        assert undecided == {True: 12, False: 3}, "nobody has seen the candidates of the second page"


async def test_who_may_not_close_a_task_judges_it_instead(world: SamplerWorld, tmp_path: Path):
    people = (Credential(name=n, role=n, hashes=(HashedToken(sha256=hash_of(n)),)) for n in ("annotate", "admin"))
    (tmp_path / "tokens.toml").write_text("".join(map(render, people)), encoding="utf-8")
    settings = world.configure(queues={"team": QUEUE}, tokens_file=tmp_path / "tokens.toml")
    async with build(settings) as server, sdk.AsyncClient(sampler=f"127.0.0.1:{server.port}", token="admin") as client:
        run = await client.sampler.start_run([("t", "hypothesis 0")], corpus="science", oracle="team", k=4, max_depth=0)

        async def waits() -> bool:
            return bool([task async for task in client.people.list_tasks(run.id)])

        await eventually(waits)
        target = client.sampler.channel.target
        answered, screens = await judge(target, run.id, "2c" + "1\n", "annotate", token="annotate")
        assert "Not closed: " in "".join(screens)
        assert (answered, await said(client.sampler, run.id)) == (1, ["++--"]), "what was ticked before is kept"
