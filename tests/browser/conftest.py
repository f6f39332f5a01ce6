"""A sampler with a queue of people, the workbench in front of it, and a browser. `make test-browser` sets all up."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import aeenc
from services.launcher.processes import free_port
from services.sampler.__main__ import build
from support.waiting import eventually
from support.worlds.sampler_world import QUEUE, SamplerWorld, small_world, tasks

if find_spec("playwright") is None or find_spec("aeenc_workbench") is None:
    collect_ignore_glob = ["test_*.py"]  # the default suite has neither
else:
    from support.worlds.trainer_world import corpus, space, world

    __all__ = ["corpus", "space", "world"]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
START_MS = 60_000  # of each wait: a busy machine starts a browser slowly


@dataclass
class Bench:
    """The workbench's address and process, the browser, and the SDK's clients beside it."""

    url: str
    links: Any
    people: aeenc.PeopleClient
    sampler: aeenc.SamplerClient
    browser: Any
    world: SamplerWorld
    restart_sampler: Callable[[], Awaitable[None]]
    windows: list[Any] = field(default_factory=list)

    async def window(self, name: str, role: str = "annotator", *, shows: str = "") -> Any:
        """A window of somebody's own, signed in by a link, once a task `shows` this. `wrong` is what went wrong."""
        page = await open_window(self.browser, self.url, self.links, name, role)
        self.windows.append(page)
        if shows:
            await shown(page, shows)
        return page

    async def run(self, texts: list[str], **config: Any) -> str:
        """Starts a run of hypotheses before the queue."""
        roots = [(f"tree-{n}", text) for n, text in enumerate(texts)]
        settings = {"corpus": "science", "oracle": "team", "k": 4, "max_depth": 1, **config}
        run = await self.sampler.start_run(roots, **settings)
        await eventually(lambda: tasks(self.people, run.id), is_so=lambda found: len(found) >= len(texts))
        return str(run.id)


async def shown(page: Any, query: str) -> None:
    """Waits until a task asks this."""
    await page.get_by_role("heading", level=1).filter(has_text=query).wait_for()


async def press_keys(page: Any, *keys: str) -> None:
    """Presses keys one after the other."""
    for key in keys:
        await page.keyboard.press(key)


async def submitted(page: Any, *keys: str) -> None:
    """Presses keys and sends the answer."""
    await press_keys(page, *keys, "Control+Enter")
    await page.get_by_text("Submitted").wait_for()


async def signed_in(http: Any, links: Any, name: str, role: Any = "annotator") -> None:
    """Signs somebody in by a link, from whom later calls come."""
    from aeenc_workbench.sign_in import Person

    assert (await http.post(f"/sign-in?link={links.make(Person(name, role))}")).status_code == 303
    http.headers["x-csrf-token"] = (await http.get("/api/me")).json()["csrf"]


async def open_window(browser: Any, url: str, links: Any, name: str, role: str) -> Any:
    """A window of somebody's own, signed in by a link."""
    from aeenc_workbench.sign_in import Person

    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    page.set_default_timeout(START_MS)
    page.wrong = []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda said: page.wrong.append(said.text) if "Content Security" in said.text else None)
    await page.goto(f"{url}/sign-in?link={links.make(Person(name, role))}")
    await page.get_by_role("button", name="Sign in").click()
    return page


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    found = os.environ.get("AEENC_TEST_BROWSER") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium); AEENC_TEST_BROWSER names one")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        await launched.close()


@pytest.fixture
def bench(redis_url: str, namespace: str, tmp_path: Path, browser: Any) -> Callable[..., Any]:
    """`async with bench(overlap=2) as at:` serves a queue `team` with these settings."""

    from aeenc_workbench.sign_in import Links

    @asynccontextmanager
    async def serve(index: Any = None, **queue: Any) -> AsyncIterator[Bench]:
        async with AsyncExitStack() as stack:
            world = await stack.enter_async_context(small_world(redis_url, namespace, index))
            port = free_port(set())
            settings = world.configure(queues={"team": {**QUEUE, "undo_s": 30.0, **queue}}, port=port)
            running = [build(settings)]
            await running[0].start()

            async def restart() -> None:
                await running[-1].stop()
                again = build(settings)
                await again.start()
                running.append(again)

            sampler = aeenc.SamplerClient(aeenc.Channel(f"127.0.0.1:{port}"))
            stack.push_async_callback(sampler.channel.close)

            async def stop() -> None:
                await running[-1].stop()

            stack.push_async_callback(stop)
            folder, at = tmp_path / "workbench", free_port(set())
            words = ["--port", str(at), "--state-dir", str(folder), "--sampler", f"127.0.0.1:{port}"]
            words += ["--index", world.settings["index_target"]]
            await stack.enter_async_context(started(words))
            people = aeenc.PeopleClient(sampler.channel)
            url, links = f"http://127.0.0.1:{at}", Links(folder)
            made = Bench(url, links, people, sampler, browser, world, restart)
            yield made
            assert not [wrong for window in made.windows for wrong in window.wrong]

    return serve


@asynccontextmanager
async def started(words: list[str]) -> AsyncIterator[Any]:
    """A workbench in a process of its own, ready to answer."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aeenc_workbench", *words, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        assert b"Links" in await asyncio.wait_for(process.stdout.readline(), 30)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
