"""A lead's page shows one run at a time, in whatever order answers arrive; an old link says what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from aeenc_workbench.sign_in import Person

pytestmark = pytest.mark.browser


async def disputed(bench: Any, text: str) -> str:
    """Starts a run in which two people disagree."""
    run_id: str = await bench.run([text], max_depth=0)
    for name, choice in (("ann", 0), ("bob", 1)):
        [lease] = await bench.people.lease(name, run_id=run_id)
        await bench.people.submit(lease, [lease.task.candidates[choice].premise_id])
    return run_id


async def test_nothing_of_one_run_stands_under_the_name_of_another(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        first, second = await disputed(at, "hypothesis 0"), await at.run(["hypothesis 1"], max_depth=0)
        page = await at.window("lead", "adjudicator")
        await page.goto(f"{at.url}/#lead")
        chosen = page.locator("label", has_text="Run").locator("select")
        dispute = page.get_by_role("region", name="Disputed: hypothesis 0")
        await chosen.select_option(first)
        await dispute.wait_for()
        person = page.get_by_role("cell", name="bob", exact=True)
        await person.first.wait_for()
        free = asyncio.Event()

        async def late(route: Any) -> None:
            await free.wait()
            await route.continue_()

        for call in ("agreement", "changes", "tasks?state=conflict"):
            await page.route(f"**/api/runs/{second}/{call}", late)
        await chosen.select_option(second)
        await page.wait_for_timeout(300)
        assert await dispute.count() == 0, "the disputes of the other run"
        assert await person.count() == 0, "the people of the other run"
        await chosen.select_option(first)
        await dispute.wait_for()
        async with page.expect_response(f"**/api/runs/{second}/tasks?state=conflict"):
            free.set()
        await page.wait_for_timeout(300)
        assert await dispute.count() == 1, "a late answer has replaced it"


async def test_an_old_link_leads_to_the_session_or_says_whom_to_ask(bench: Any) -> None:
    async with bench() as at:
        link = f"{at.url}/sign-in?link={at.links.make(Person('ann'))}"
        async with httpx.AsyncClient(follow_redirects=True) as http:
            assert (await http.post(link)).status_code == 200
            again = await http.post(link)
            assert (again.status_code, str(again.url).rstrip("/")) == (200, at.url), "the session goes on"
        async with httpx.AsyncClient() as stranger:
            refused = await stranger.post(link)
        assert refused.status_code == 401
        assert "ask whoever has sent it for a new one" in refused.text
        assert "workbench.css" in refused.text
