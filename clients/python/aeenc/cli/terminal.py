"""`aeenc oracle terminal`: a person judges in the terminal. Leases go through the SDK's PeopleClient.

    lease ─► show a page ─► key ─► tick, turn the page … ─► Enter or space ─► submit ─► next lease
                 ▲            └─ /: search the corpus for what is missing; w, i: write a fact or a conclusion
                 │            └─ u: undo, lease that task again; g: let the run go on; s: release; q: quit
                 │            └─ r: has the task retrieved again by a newer encoder
                 └── a thread renews the lease meanwhile; every call waits for a sampler that is away

One screen a task: nine candidates a page, the ticked ones explain. Confirming refuses what was shown and left unticked;
pages never turned to stay unseen.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import select
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from aeenc import errors, values
from aeenc.cli.output import Visible, output_of
from aeenc.cli.targets import client
from aeenc.errors import FailedPrecondition
from aeenc.oracle import ABSTAINS, EXPLAINS, Verdict
from aeenc.transport.sync import SIGNAL_S

END = ""  # the input is closed
ESCAPE = "\x1b"
SEQUENCE_S = 0.02  # within this, the rest of a key follows that sends several bytes


class Keys:
    """Reads keys from a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept: bytes | None = None  # what stood behind an Escape

    def key(self, timeout_s: float | None = None) -> str | None:
        """Waits for the next key; None when none comes in time, or an arrow or the like; END when none can come."""
        read = self._byte(timeout_s)
        if read is None or (read == ESCAPE.encode() and self._skips_sequence()):
            return None
        if read and read[0] >= 0xC0:  # the first byte of a letter in UTF-8 says how many follow
            read += os.read(self._descriptor, 1 if read[0] < 0xE0 else 2 if read[0] < 0xF0 else 3)
        return "\n" if read == b"\r" else read.decode("utf-8", "replace")

    def _byte(self, timeout_s: float | None) -> bytes | None:
        """Waits for the next byte; None when none comes in time, empty when none can come."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        wait_s = SIGNAL_S if timeout_s is None else timeout_s
        while not (ready := select.select([self._descriptor], [], [], wait_s)[0]) and timeout_s is None:
            pass
        return os.read(self._descriptor, 1) if ready else None

    def _skips_sequence(self) -> bool:
        """Skips the rest of what arrows, PageDown or F5 send: `[` or `O`, then bytes up to a letter or `~`.

        False for the key Escape, which comes alone.
        """
        self._kept = self._byte(SEQUENCE_S)
        if self._kept not in {b"[", b"O"}:
            return False
        self._kept = None
        while byte := self._byte(SEQUENCE_S):
            if b"@" <= byte <= b"~" and byte != b"[":  # a Linux console sends ESC [ [ A for F1
                break
        return True


@contextmanager
def terminal_keys() -> Iterator[Keys]:
    """Reads keys from the terminal while the body runs; restores it afterwards. Lines of a pipe judge nothing."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        raise FailedPrecondition("this command needs a POSIX terminal; use WSL or the SDK (aeenc.people)") from None
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        raise FailedPrecondition("standard input is no terminal; judge from a program by the SDK (aeenc.people)")
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


PAGE = 9
IDLE_S, RETRY_S = 2.0, 1.0
BACK_TRIES, BACK_PAUSE_S = 50, 0.1  # for a task that is retrieved again
RELEASE_S = 3.0  # at the end, for each task that is given back
_AWAY = (errors.Unavailable, errors.DeadlineExceeded, errors.Overloaded)
T = TypeVar("T")
HELP = (
    "1-9 tick   l+1-9 leaf   n/p page   / search   w write   i intermediate   Enter confirm   space abstain   s skip"
    "   c close   u undo   g go on   r re-rank   q quit"
)
ASKS = {
    "/": "Search the corpus for",
    "w": "A fact that the corpus lacks",
    "i": "A conclusion that explains this and needs an explanation itself",
}
BACKSPACE = {"\x7f", "\b"}
DIGITS = frozenset("123456789")  # str.isdigit has others, such as ²

Show = Callable[[RenderableType], None]


@dataclass
class Screen:
    """One task in front of a person: ticked candidates, the page, and the lowest rank that was shown.

    `added` are premises that a search has found (id to text). `written` are facts in the person's words,
    `intermediates` conclusions that need an explanation themselves.
    """

    lease: values.Lease
    ticked: set[str] = field(default_factory=set)
    leaves: set[str] = field(default_factory=set)
    added: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    intermediates: list[str] = field(default_factory=list)
    page: int = 0
    seen_upto: int = 0
    since: float = field(default_factory=time.monotonic)

    def shown(self) -> list[Any]:
        """Returns the candidates of the page, which count as seen from now on."""
        candidates = list(self.lease.task.candidates)[self.page * PAGE : (self.page + 1) * PAGE]
        self.seen_upto = max([self.seen_upto, *(candidate.rank for candidate in candidates)])
        return candidates

    def turn(self, pages: int) -> None:
        """Turns pages, as far as there are any."""
        last = max(0, (len(self.lease.task.candidates) - 1) // PAGE)
        self.page = min(max(self.page + pages, 0), last)

    def toggle(self, digit: int, *, leaf: bool) -> None:
        """Ticks or unticks a candidate of the page; as a leaf it needs no explanation of its own."""
        candidates = self.shown()
        if digit > len(candidates):
            return
        premise_id = candidates[digit - 1].premise.id
        if leaf:
            self.leaves ^= {premise_id}
            self.ticked |= {premise_id} & self.leaves
        else:
            self.ticked ^= {premise_id}
            self.leaves &= self.ticked

    def keep(self, before: Screen) -> None:
        """Keeps what was ticked and written on an earlier screen of the same query, as far as it is still there."""
        there = {candidate.premise.id for candidate in self.lease.task.candidates}
        self.ticked, self.leaves = before.ticked & there, before.leaves & there
        self.added, self.written, self.intermediates = before.added, before.written, before.intermediates

    def verdicts(self) -> dict[str, Verdict]:
        """Returns verdicts on the ticked candidates."""
        return {premise_id: Verdict(EXPLAINS, leaf=premise_id in self.leaves) for premise_id in self.ticked}

    def abstentions(self) -> dict[str, Verdict]:
        """Returns an abstention on every candidate."""
        return {candidate.premise.id: Verdict(ABSTAINS) for candidate in self.lease.task.candidates}

    def drawn(self, note: str) -> RenderableType:
        """Draws the screen."""
        task = self.lease.task
        lines: list[Text] = [Text(note, style="dim"), Text()]
        lines += [Text(f"{'  ' * depth}{text}", style="dim") for depth, text in enumerate(task.path)]
        lines += [Text(f"Which of these explain: {task.query}", style="bold"), Text()]
        lines += [Text(f"      already: {candidate.premise.text}", style="dim") for candidate in task.accepted]
        for number, candidate in enumerate(self.shown(), start=1):
            ticked = candidate.premise.id in self.ticked
            mark = "leaf" if candidate.premise.id in self.leaves else " ok " if ticked else "    "
            lines.append(Text(f"  {number} [{mark}] {candidate.premise.text}", style="green" if ticked else ""))
        lines += [Text(f"    added: {text}", style="green") for text in self.added.values()]
        lines += [Text(f"  written: {text}", style="green") for text in self.written]
        lines += [Text(f"  follows: {text}", style="green") for text in self.intermediates]
        pages = -(-len(task.candidates) // PAGE)
        lines += [Text(), Text(f"page {self.page + 1} of {pages}   {HELP}", style="dim")]
        return Group(*lines)


class JudgingSession:
    """The loop: lease, show, read keys, submit. `client` is a blocking client of the SDK."""

    def __init__(self, client: Any, annotator: str, run_id: str, keys: Keys, show: Show, *, wait: bool) -> None:
        self._people, self._runs, self._index = client.people, client.sampler, client.index
        self._leaving = client.with_options(timeout_s=RELEASE_S, retry=False).people
        self._annotator, self._run_id = annotator, run_id
        self._keys, self._show, self._wait = keys, show, wait
        self._past: list[Screen] = []
        self._note = ""

    @property
    def answered(self) -> int:
        """The number of answers of this session, without undone ones."""
        return len(self._past)

    def work(self) -> int:
        """Judges until the person quits, the run has ended or (without `wait`) nothing waits. Counts the answers.

        Gives open tasks back at the end, Ctrl-C and errors included.
        """
        open_screens: list[Screen] = []  # an undone task lies on top of the interrupted one
        try:
            self._work(open_screens)
        finally:
            for left in open_screens:
                self._give_back(left, "quit")
        return self.answered

    def _work(self, open_screens: list[Screen]) -> None:
        while True:
            if not open_screens:
                open_screens += self._lease(self._run_id)
            if open_screens:
                with self._held(open_screens[-1].lease):
                    key = self._judge(open_screens[-1])
            else:
                key = self._idle()
            if key == "q":
                return
            if key == "u":
                open_screens += self._undo()
            elif key == "g":
                self._go_on()
            elif key == "r" and open_screens:
                open_screens[-1:] = self._again(open_screens[-1])  # it stays open until the other one is there
            elif open_screens:
                open_screens.pop()

    def _await(self, call: Callable[[], T]) -> T:
        """Makes a call, again and again while the sampler is away. Raises its error when the person quits meanwhile."""
        while True:
            try:
                return call()
            except _AWAY as error:
                self._show(Text(f"Waiting for the sampler; what you have ticked is kept. q quits. {error.message}"))
                if self._keys.key(RETRY_S) in {"q", END}:
                    raise

    def _lease(self, run_id: str) -> list[Screen]:
        request_id = uuid.uuid4().hex
        leases = self._await(lambda: self._people.lease(self._annotator, run_id=run_id, request_id=request_id))
        return [Screen(lease) for lease in leases]

    def _idle(self) -> str:
        """Waits a while for a key; `q` when the session is over."""
        if not self._wait or (self._run_id and self._await(lambda: self._runs.get_run(self._run_id)).ended_at):
            return "q"
        self._show(Text(f"Nothing waits for {self._annotator}. u undo, g go on, q quit. {self._note}"))
        key = self._keys.key(IDLE_S)
        return "q" if key == END else key or ""

    def _judge(self, screen: Screen) -> str:
        """Reads keys until the task is finished. The caller handles `q` and `u`."""
        leaf = False
        while True:
            self._show(screen.drawn(f"{self._annotator}, {self.answered} answered. {self._note}"))
            key = self._keys.key()
            self._note = ""
            if key in {"q", "u", "g", "r", END}:
                return key or "q"
            if key == "s":
                self._await(lambda: self._people.release(screen.lease.lease_id, "skipped"))
                return ""
            if key == "c" and self._close(screen):
                return ""
            if key in {"\n", " "} and self._submit(screen, abstains=key == " "):
                return ""
            if key in ASKS and (typed := self._line(ASKS[key])):
                self._typed(screen, key, typed)
            elif key in {"n", "p"}:
                screen.turn(1 if key == "n" else -1)
            elif key in DIGITS:
                screen.toggle(int(key), leaf=leaf)
            leaf = key == "l"

    def _typed(self, screen: Screen, key: str, typed: str) -> None:
        """Searches the corpus, or keeps what a person has written."""
        if key == "/":
            self._search(screen, typed)
        else:
            (screen.written if key == "w" else screen.intermediates).append(typed)

    def _line(self, prompt: str) -> str:
        """Reads a line; empty when the person gives up by Escape."""
        typed = ""
        while True:
            self._show(Text(f"{prompt} (Enter ends, Escape gives up): {typed}"))
            key = self._keys.key()
            if key in {ESCAPE, END}:
                return ""
            if key == "\n":
                return typed.strip()
            if key in BACKSPACE:
                typed = typed[:-1]
            elif key and key.isprintable():
                typed += key

    def _search(self, screen: Screen, query: str) -> None:
        """Shows what the corpus has for a query; what is ticked there is added to the task."""
        task = screen.lease.task
        try:
            run = self._runs.get_run(screen.lease.run_id)
            found = self._index.retrieve(
                run.config.corpus,
                [query],
                k=PAGE,
                version=run.current_version,
                generation=run.generation,
                splits=("facts", run.config.split) if run.config.split else (),
                exclude=[candidate.premise.id for candidate in task.candidates],
                truncate=True,
            )
        except errors.AeencError as error:
            self._note = f"Not searched: {error.message}"
            return
        hits = [hit for hit in found.results[0] if hit.text not in (task.query, *task.path)]
        while True:
            lines = [Text(f"Which of these explain: {task.query}", style="bold"), Text()]
            for number, hit in enumerate(hits, start=1):
                ticked = hit.id in screen.added
                lines.append(Text(f"  {number} [{' ok ' if ticked else '    '}] {hit.text}", style="green" * ticked))
            self._show(Group(*lines, Text(), Text("1-9 add to the task   Enter back", style="dim")))
            key = self._keys.key()
            if key in {"\n", ESCAPE, END}:
                return
            if key in DIGITS and int(key) <= len(hits):
                hit = hits[int(key) - 1]
                if screen.added.pop(hit.id, None) is None:
                    screen.added[hit.id] = hit.text

    def _submit(self, screen: Screen, *, abstains: bool) -> bool:
        """Sends an answer; False where the person can correct it, and nothing of it is lost."""
        verdicts = screen.abstentions() if abstains else screen.verdicts()
        seen = {"seen_upto": screen.seen_upto, "elapsed_s": time.monotonic() - screen.since}
        found = {"additions": list(screen.added), "written": screen.written, "intermediates": screen.intermediates}
        once = random.getrandbits(63)
        try:
            self._await(lambda: self._people.submit(screen.lease, verdicts, **seen, **found, client_seq=once))
        except (errors.FailedPrecondition, errors.InvalidArgument, errors.NotFound) as error:
            self._note = f"Not taken: {error.message}"
            if not isinstance(error, errors.FailedPrecondition):
                return False
            self._give_back(screen, "not taken")  # nobody can answer this one any more
        else:
            self._past.append(screen)
        return True

    def _give_back(self, screen: Screen, reason: str) -> None:
        with contextlib.suppress(errors.AeencError):  # then the lease runs out
            self._leaving.release(screen.lease.lease_id, reason)

    def _close(self, screen: Screen) -> bool:
        """Lets the answers of others decide the task, as many as there are; False where it was not closed."""
        task, request_id = screen.lease.task, uuid.uuid4().hex
        try:
            self._await(
                lambda: self._people.close(
                    screen.lease.run_id, task.task_id, self._annotator, reason="at the terminal", request_id=request_id
                )
            )
        except (errors.FailedPrecondition, errors.NotFound, errors.PermissionDenied) as error:
            self._note = f"Not closed: {error.message}"
            return False
        self._give_back(screen, "closed")
        return True

    def _again(self, screen: Screen) -> list[Screen]:
        """Has a task retrieved again by a newer encoder, and leases it as it comes back, ticked as it was."""
        lease = screen.lease
        asked = {"task_id": lease.task.task_id, "lease_id": lease.lease_id}
        try:
            done = self._await(lambda: self._people.retrieve_again(lease.run_id, self._annotator, **asked))
        except (errors.FailedPrecondition, errors.NotFound) as error:
            self._note = f"Not ranked again: {error.message}"
            return [screen]
        if not done.task_ids:
            self._note = f"No newer encoder: {done.model_version} has retrieved this task."
            return [screen]
        self._note = f"Ranked again by {done.model_version}."
        for _ in range(BACK_TRIES):
            tree = self._await(lambda: self._people.get_tree(lease.run_id, lease.hypothesis_id))
            task_id = next(node.task_id for node in tree.nodes if node.node_id == lease.node_id)
            wanted = {"run_id": lease.run_id, "task_id": task_id, "request_id": uuid.uuid4().hex}
            if leases := self._await(lambda wanted=wanted: self._people.lease(self._annotator, **wanted)):  # type: ignore[misc]
                again = Screen(leases[0], since=screen.since)
                again.keep(screen)
                return [again]
            time.sleep(BACK_PAUSE_S)
        self._note = "The task is not back yet; it comes with the queue."
        return []

    def _go_on(self) -> None:
        """Lets the run go on with the last answer of this session now; it can no longer be undone."""
        if not self._past:
            self._note = "Nothing to go on with in this session."
            return
        last, request_id = self._past[-1].lease, uuid.uuid4().hex
        try:
            task = (last.run_id, last.task.task_id, self._annotator)
            self._await(lambda: self._people.settle(*task, request_id=request_id))
        except errors.FailedPrecondition as error:
            self._note = f"Not gone on: {error.message}"
        else:
            self._note = "The run goes on with your last answer."

    def _undo(self) -> list[Screen]:
        """Takes the last answer of this session back and leases its task again, ticked as it was."""
        if not self._past:
            self._note = "Nothing to undo in this session."
            return []
        last, request_id = self._past[-1], uuid.uuid4().hex
        try:
            self._await(lambda: self._people.undo(self._annotator, last.lease.run_id, request_id=request_id))
        except (errors.FailedPrecondition, errors.NotFound) as error:
            self._note = f"Not undone: {error.message}"
            return []
        self._past.pop()
        screens = self._lease(last.lease.run_id)
        for screen in screens:
            if screen.lease.task.task_id == last.lease.task.task_id:
                screen.keep(last)
                screen.seen_upto = last.seen_upto
            else:
                self._note = "Undone; somebody else has taken that task."
        return screens

    @contextlib.contextmanager
    def _held(self, lease: values.Lease) -> Iterator[None]:
        """Renews a lease while its task is on the screen; if this process dies, somebody else gets it."""
        done = threading.Event()
        left_s = max(lease.expires_at.timestamp() - datetime.now(UTC).timestamp(), 3.0)

        def renew() -> None:
            while not done.wait(left_s / 3):
                with contextlib.suppress(errors.AeencError):  # a late answer may still be accepted
                    self._people.renew(lease.lease_id)

        thread = threading.Thread(target=renew, name="aeenc-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()


def terminal(
    context: typer.Context,
    run: Annotated[str, typer.Option(metavar="RUN", help="The run to judge for.", show_default="any")] = "",
    annotator: Annotated[
        str | None, typer.Option(envvar="AEENC_ANNOTATOR", help="Who judges.", show_default="your login")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait for more when nothing is left to judge.")] = True,
) -> None:
    """A person judges: 1-9 tick what explains, Enter confirms, space abstains, u undoes.

    Leases tasks of runs whose oracle is a queue (AEENC_SAMPLER_QUEUES).
    Confirming refuses what was shown and left unticked; pages that were
    never turned to (n, p) stay unseen. / searches the corpus for what the
    candidates lack, w writes a fact that it lacks.
    """
    console = Console(stderr=True, highlight=False)

    def show(screen: RenderableType) -> None:
        if console.is_terminal:
            console.clear()
        console.print(Visible(screen))

    name = annotator or getpass.getuser()
    with client(context) as connected:
        if run:
            connected.sampler.get_run(run)  # refuses an unknown run before the terminal changes
        with terminal_keys() as keys:
            answered = JudgingSession(connected, name, run, keys, show, wait=wait).work()
    output_of(context).result({"annotator": name, "answered": answered}, f"{name} has answered {answered}")
