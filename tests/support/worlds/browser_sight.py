"""Which candidates were in sight, by boxes that are taken at every frame, never by the word of the page; random walks.

A candidate is in sight while the whole text of its row lies in the window, below the header and above the bar, in a
visible tab without a dialog. Of a text that is taller than that area, each line counts for itself.

    Walker ─ keys, clicks, wheel, sizes, two tabs ─▶ the page ─ calls, each late by up to 600 ms ─▶ the workbench
       └──── what it has recorded of boxes and calls, beside what the sampler has ────▶ Walked
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aeenc

SIGHT_MS = 1000.0
FRAME_MS = 34.0  # a row that comes or goes within two frames may be counted by one side only
LATE_S = 0.6
ACT_S = 2.0
PHONE = 390
NO_CONTENT = 204
KEYS = [*3 * "12345", *"6789aalrxibsnugko/?", *3 * ["ArrowDown"], "ArrowUp", "Escape"]
RECORD = """
const really = Object.getOwnPropertyDescriptor(Document.prototype, "visibilityState").get;
Object.defineProperty(document, "visibilityState", { get: () => window.behind ? "hidden" : really.call(document) });
window.inSight = JSON.parse(sessionStorage.getItem("inSight") ?? "{}");
addEventListener("pagehide", () => sessionStorage.setItem("inSight", JSON.stringify(window.inSight)));
(() => {
    const ROWS = 'ol[aria-label^="Candidates"] > li', LONGEST_MS = 250; // between frames: a machine may have slept
    let lit = [], at = performance.now();
    const box = (name) => document.querySelector(name)?.getBoundingClientRect();
    function frame() {
        const now = performance.now();
        for (const [key, line, lines] of lit) {
            const [longest, known] = window.inSight[key] ?? [0, []];
            const times = known.length === lines ? known : Array(lines).fill(0);
            times[line] += Math.min(now - at, LONGEST_MS);
            window.inSight[key] = [Math.max(longest, Math.min(...times)), times];
        }
        at = now;
        lit = [];
        const query = document.querySelector("h1")?.innerText.split("\\n").at(-1).trim();
        const [header, bar] = [box("header"), box("footer.bar")];
        const top = Math.max(0, header?.bottom ?? 0), bottom = Math.min(innerHeight, bar?.top ?? innerHeight);
        const hidden = document.visibilityState !== "visible" || document.querySelector("dialog[open]");
        for (const row of hidden ? [] : document.querySelectorAll(ROWS)) {
            const text = row.querySelector(".text"), lines = [...text.getClientRects()];
            const whole = text.getBoundingClientRect();
            const holds = (one) => one.top >= top - 1 && one.bottom <= bottom + 1 && one.left >= 0
                && one.right <= innerWidth + 1;
            const key = `${query}\\n${text.innerText.trim()}`;
            if (whole.height > bottom - top) lines.forEach((one, n) => holds(one) && lit.push([key, n, lines.length]));
            else if (holds(whole)) lines.forEach((_, n) => lit.push([key, n, lines.length]));
        }
        requestAnimationFrame(frame);
    }
    requestAnimationFrame(frame);
})();
"""
HIDE = "(behind) => { window.behind = behind; document.dispatchEvent(new Event('visibilitychange')); }"  # as a tab does
AREA = """() => {
    const row = document.querySelector(".candidate.focused").getBoundingClientRect();
    const header = document.querySelector("header").getBoundingClientRect();
    const bar = document.querySelector("footer.bar").getBoundingClientRect();
    return [row.top - Math.max(0, header.bottom), Math.min(innerHeight, bar.top) - row.bottom];
}"""
ASKED = "document.querySelector('h1')?.innerText.split('\\n').at(-1).trim()"


@asynccontextmanager
async def windows(links: Sequence[str]) -> AsyncIterator[list[Any]]:
    """A window for each link, signed in by it, each with cookies of its own."""
    from playwright.async_api import async_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        pages = [await (await browser.new_context()).new_page() for _ in links]
        for page, link in zip(pages, links, strict=True):
            await page.goto(link)
            await page.get_by_role("button", name="Sign in").click()
            await page.get_by_role("heading", level=1).wait_for()
        yield pages
        await browser.close()


async def record(page: Any) -> None:
    """Begins to take boxes, now and after each reload."""
    await page.add_init_script(RECORD)
    await page.evaluate(RECORD)


async def seen(page: Any) -> dict[str, float]:
    """For how many ms each `query, newline, text` was in sight: of its line that was so for the shortest time.

    What was read before a change of the window's width has broken it into other lines stays read.
    """
    return {key: longest for key, (longest, _) in (await page.evaluate("window.inSight")).items()}


@dataclass
class Walked:
    """What walkers have done, and what was wrong with it."""

    answers: int = 0
    lists: Counter[int] = field(default_factory=Counter)  # answers by the number of candidates
    changed: int = 0  # answers that were changed later
    refusals: int = 0
    unread: int = 0  # candidates sent as unseen
    refused_unseen: list[str] = field(default_factory=list)
    of_another_task: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)


class Walker:
    """One person who presses, clicks and scrolls at random, in two tabs."""

    def __init__(self, page: Any, name: str, width: int, walked: Walked, seed: int = 0) -> None:
        self.name, self._walked, self._width = name, walked, width
        self._rng = random.Random(f"{name} {width} {seed}")
        self._tabs, self._at = [page], page
        self._tasks: dict[str, dict[str, Any]] = {}  # by lease, and by answer that may be changed
        self.given: dict[str, str] = {}  # answer ids and their tasks, as the page was told
        self.undone: set[str] = set()
        self.acts = 0

    async def start(self, queue: str = "") -> None:
        """Records from now on, in tasks of this queue (empty: any), and opens a second tab."""
        context = self._at.context
        await context.add_init_script(RECORD)
        await context.route(lambda url: "/api/" in url and "/events" not in url, self._pass_on)
        at = self._at.url
        await self._at.goto(f"{at.partition('#')[0]}assets/workbench.css")
        await self._at.evaluate("localStorage.clear()")  # what was in sight before is not recorded
        await self._at.goto(at)
        if queue:
            await self._at.get_by_label("Tasks of").select_option(queue)
        self._tabs.append(await context.new_page())
        await self._tabs[1].goto(at)
        for tab in self._tabs:
            tab.set_default_timeout(1000 * ACT_S)
            await tab.set_viewport_size({"width": self._width, "height": 800})

    async def walk(self, answers: int, ends: float) -> None:
        """Acts until all walkers together have given so many answers, or the time is over."""
        while self._walked.answers < answers and time.monotonic() < ends:
            with contextlib.suppress(Exception):  # what it looks for has just gone: the next act finds another thing
                self.acts += 1
                await asyncio.wait_for(self._act(), 2 * ACT_S)
            await asyncio.sleep(self._rng.choice((0.02, 0.05, 0.1, 0.3, 0.6)))

    async def _act(self) -> None:
        acts = {
            self._key: 30, self._submit: 26, self._press: 10, self._wheel: 14, self._row: 8,
            self._size: 4, self._tab: 2, self._hide: 2, self._reload: 1, self._node: 3, self._add: 2,
        }  # fmt: skip
        await self._rng.choices(list(acts), weights=list(acts.values()))[0](self._at)

    async def _key(self, page: Any) -> None:
        await page.keyboard.press(self._rng.choice(KEYS))
        if self._rng.random() < 0.5:
            await page.keyboard.press("Escape")

    async def _submit(self, page: Any) -> None:
        await page.keyboard.press("Escape")
        for _ in range(self._rng.choice((1, 1, 2))):
            await page.keyboard.press("Control+Enter")
        choices = page.get_by_role("alertdialog").get_by_role("button")
        if self._rng.random() < 0.7 and (count := await choices.count()):
            await choices.nth(self._rng.randrange(count)).click()

    async def _press(self, page: Any) -> None:
        await page.get_by_role("button", name="Submit").click(click_count=self._rng.choice((1, 2)))

    async def _wheel(self, page: Any) -> None:
        await page.mouse.move(self._width * 0.6, 300)
        await page.mouse.wheel(0, self._rng.choice((-1, 1, 1)) * self._rng.choice((60, 200, 500, 1500)))

    async def _row(self, page: Any) -> None:
        rows = page.locator('ol[aria-label^="Candidates"] > li')
        row = rows.nth(self._rng.randrange(max(1, await rows.count())))
        await row.locator(self._rng.choice((".text", ".tick"))).click()

    async def _node(self, page: Any) -> None:
        nodes = page.locator(".tree button.text")
        await nodes.nth(self._rng.randrange(max(1, await nodes.count()))).click()

    async def _add(self, page: Any) -> None:
        await page.keyboard.press("/")
        await page.keyboard.type(f"fact {self._rng.randrange(60)}")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Add", exact=True).first.click()

    async def _size(self, page: Any) -> None:
        zoom = self._rng.choice((1, 1, 1.5, 2)) if self._width > PHONE else 1
        height = self._rng.choice((480, 650, 800, 1000))
        await page.set_viewport_size({"width": int(self._width / zoom), "height": int(height / zoom)})

    async def _tab(self, page: Any) -> None:
        self._at = self._tabs[1 - self._tabs.index(page)]
        await self._at.bring_to_front()

    async def _hide(self, page: Any) -> None:
        await page.evaluate(HIDE, True)
        await asyncio.sleep(self._rng.uniform(0.2, 1.5))
        await page.evaluate(HIDE, False)

    async def _reload(self, page: Any) -> None:
        await page.reload()

    async def _pass_on(self, route: Any) -> None:
        """Sends a call on, late; checks an answer before it goes, notes what comes back."""
        request = route.request
        call = request.url.rpartition("/api/")[2].partition("?")[0]
        try:
            body = json.loads(request.post_data or "{}")
            if call in ("answer", "amend"):
                await self._check(
                    request.frame.page, body, self._tasks[body["lease" if call == "answer" else "answer"]]
                )
            await asyncio.sleep(self._rng.uniform(0, LATE_S / 2))
            response = await route.fetch(timeout=30_000)
            told = await response.json() if response.ok and response.status != NO_CONTENT else None
            if call == "lease" and told:
                self._tasks[told["lease_id"]] = told["task"]
            elif call.endswith("/answers") and told:
                self._tasks |= {answer["answer_id"]: one["task"] for one in told for answer in one["answers"]}
            elif call == "amend" and told:
                self._walked.changed += 1
                self.undone.add(body["answer"])
                self.given[told["answer"]] = self._tasks[body["answer"]]["task_id"]
            elif call == "answer" and told:
                task = self._tasks[body["lease"]]
                if told["answer_id"] not in self.given:
                    self._walked.answers += 1
                    self._walked.lists[len(task["candidates"])] += 1
                self.given[told["answer_id"]] = task["task_id"]
            elif call == "undo" and told:
                self.undone.update(told["answers"])
            await asyncio.sleep(self._rng.uniform(0, LATE_S / 2))
            await route.fulfill(response=response)
        except Exception:  # noqa: BLE001 -- the page was left meanwhile: its call is cut, as a lost connection would be
            with contextlib.suppress(Exception):
                await route.abort()

    async def _check(self, page: Any, body: dict[str, Any], task: dict[str, Any]) -> None:
        query = task["query"]
        if (asked := await page.evaluate(ASKED)) != query:
            self._walked.of_another_task.append(f"{self.name}: {query!r} was sent while {asked!r} was shown")
        times: dict[str, float] = {}
        for tab in self._tabs:
            for key, ms in (await seen(tab)).items():
                times[key] = times.get(key, 0.0) + ms
        for candidate in task["candidates"]:
            said = body["verdicts"].get(candidate["premise_id"])
            refused = said == "refuses" or (said is None and candidate["rank"] <= body.get("seen_upto", 0))
            self._walked.refusals += refused
            self._walked.unread += said == "unseen"
            ms = times.get(f"{query}\n{candidate['text'].strip()}", 0.0)
            if refused and ms < SIGHT_MS - FRAME_MS:
                self._walked.refused_unseen.append(f"{self.name}: {query!r}, {candidate['text'][:20]!r}: {ms:.0f} ms")


async def check(walkers: list[Walker], people: aeenc.PeopleClient, runs: list[str], walked: Walked) -> None:
    """Compares what pages were told with what the sampler has."""
    kept: list[str] = []
    for run in runs:
        async for task in people.list_tasks(run):
            kept += [answer.answer_id for answer in task.answers]
            names = [answer.annotator for answer in task.answers]
            walked.twice += [f"{task.task.task_id}: {name}" for name in names if names.count(name) > 1]
    given = {answer for walker in walkers for answer in walker.given}
    undone = set().union(*(walker.undone for walker in walkers))
    walked.lost += sorted(given - undone - set(kept))
