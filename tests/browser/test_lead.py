"""A lead sees the disputes of all runs, decides them by mouse and keys, and reads the figures of one run at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from browser.conftest import press_keys
from browser.test_sight import held

from aeenc.oracle import EXPLAINS, REFUSES, Answer, Verdict
from aeenc.people import PAGE
from aeenc.values import TaskState
from services.sampler.people.overview import Overview
from support.worlds.sampler_world import take

pytestmark = pytest.mark.browser


async def disagree(bench: Any, run_id: str, tree: int = 0) -> None:
    """Answers the root of a tree twice, once for each of its first two candidates."""
    for name, choice in (("ann", 0), ("bob", 1)):
        [lease] = await bench.people.lease(name, run_id=run_id, hypothesis_id=f"tree-{tree}")
        await bench.people.submit(lease, [lease.task.candidates[choice].premise.id])


async def disputed(bench: Any, text: str) -> str:
    """Starts a run in which two people disagree."""
    run_id: str = await bench.run([text], max_depth=0)
    await disagree(bench, run_id)
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
        release = await held(page, f"**/api/runs/{second}/agreement", f"**/api/runs/{second}/changes")
        await chosen.select_option(second)
        await page.wait_for_timeout(300)
        assert await person.count() == 0, "the people of the other run"
        await chosen.select_option(first)
        await person.first.wait_for()
        await page.wait_for_timeout(1000)  # until nothing reads the figures again, which would hide it
        async with page.expect_response(f"**/api/runs/{second}/changes"):
            release()
        await page.wait_for_timeout(300)
        assert await person.count() > 0, "a late answer has replaced them"
        assert await dispute.count() == 1, "the disputes of all runs stay"


async def test_a_run_shows_how_far_it_is_and_how_many_answers_each_hour_or_day_has_brought(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        await disagree(at, run_id)
        page = await at.window("lea", "adjudicator")
        await page.get_by_text("1 disputed, 1 waiting", exact=True).wait_for()
        await page.get_by_role("img", name="2 answers, ").wait_for()
        hours = [{"at": f"2026-01-0{day}T10:00:00+00:00", "answers": count} for day, count in ((1, 3), (4, 5))]
        await page.route("**/changes", lambda route: route.fulfill(json={"latest": [], "answers": hours}))
        await page.reload()
        drawn = page.get_by_role("img", name="8 answers, ")
        await drawn.wait_for()
        assert "; at most 5 (" in await drawn.get_attribute("aria-label")
        heights = [float(await one.get_attribute("height")) for one in await drawn.locator("rect").all()]
        assert [round(one / max(heights), 2) for one in heights] == [0.6, 0, 0, 1], (
            "a day without an answer has its place"
        )


async def test_a_lead_begins_with_the_disputes_of_all_runs_each_with_what_decides_it(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        first = await disputed(at, "hypothesis 0")
        roots = [("asked", "hypothesis 1", "What floats?", "ice")]
        second = (await at.sampler.start_run(roots, corpus="science", oracle="team", k=4, max_depth=1)).id
        lease = await take(at.people, "ann", second)
        below = lease.task.candidates[0].premise
        for name in ("ann", "bob"):
            [lease] = [lease] if name == "ann" else await at.people.lease(name, run_id=second)
            await at.people.submit(lease, [below.id])
        await at.people.settle(second, lease.task.task_id, "bob")
        for name in ("ann", "bob"):
            lease = await take(at.people, name, second)
            both, *rest = [one.premise for one in lease.task.candidates]
            words = {both.id: EXPLAINS, rest[name == "bob"].id: Verdict(EXPLAINS, leaf=name == "bob")}
            await at.people.submit(lease, Answer(words, inference=f"reason of {name}", note=f"note of {name}"))

        page = await at.window("lea", "adjudicator")
        deep = page.get_by_role("region", name=f"Disputed: {below.text}")
        for text in ("Question: What floats? Answer: ice", f"Accepted by agreement: {both.text}"):
            await deep.get_by_text(text).wait_for()
        assert await deep.get_by_role("list", name="Path from the hypothesis").inner_text() == "hypothesis 1"
        assert await deep.get_by_text("team, ").count() == 1, "its run"
        for name in ("ann", "bob"):
            await deep.get_by_text(f"{name}: because reason of {name} note of {name}").wait_for()
        cells = [await row.get_by_role("cell").all_inner_texts() for row in await deep.get_by_role("row").all()][1:]
        assert [row[:3] for row in cells] == [
            [rest[0].text, "accepted", "refused"],
            [rest[1].text, "refused", "leaf"],
        ]
        shallow = page.get_by_role("region", name="Disputed: hypothesis 0")
        for group in await shallow.get_by_role("group").all():
            await group.get_by_role("button", name="Refuse").click()
        await shallow.get_by_role("button", name="Decide").click()
        await page.get_by_text("Decided: “hypothesis 0”.").wait_for()
        await shallow.wait_for(state="detached")
        assert await deep.count() == 1
        assert [one.decision.annotator async for one in at.people.list_tasks(first)] == ["lea"]
        ann = await at.window("ann")
        assert await ann.evaluate("fetch('/api/disputes').then((one) => one.status)") == 403


async def test_an_answer_changed_after_its_run_has_ended_is_counted_disputed_and_can_be_decided(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        ended = await at.run(["hypothesis 0"], max_depth=0)
        for name in ("ann", "bob"):
            [lease] = await at.people.lease(name, run_id=ended)
            accepted = lease.task.candidates[0].premise.id
            answer = await at.people.submit(lease, [accepted])
        await at.people.settle(ended, lease.task.task_id, "bob")
        await at.sampler.wait(ended)
        await at.people.amend(answer.answer_id, {accepted: REFUSES}, "bob")
        cancelled = await disputed(at, "hypothesis 2")
        await at.sampler.cancel(cancelled)  # nobody can decide it before the run is resumed
        page = await at.window("lea", "adjudicator")
        again = page.get_by_role("region", name="Disputed: hypothesis 0")
        await again.wait_for()
        await page.get_by_role("link", name="Lead (1)").wait_for()
        await page.get_by_text("succeeded, 1 disputed").wait_for()
        await disputed(at, "hypothesis 1")
        live = page.get_by_role("region", name="Disputed: hypothesis 1")
        await live.wait_for()
        await page.get_by_role("link", name="Lead (2)").wait_for()
        await again.get_by_role("button", name="Accept").click()
        await again.get_by_role("button", name="Decide").click()
        await again.wait_for(state="detached")
        await page.get_by_role("link", name="Lead (1)").wait_for()
        assert [one.decision.annotator async for one in at.people.list_tasks(ended)] == ["lea"]
        assert await live.count() == 1
        assert await page.get_by_role("region", name="Disputed: hypothesis 2").count() == 0


async def test_disputes_are_decided_by_keys_alone_and_again_until_they_stand(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        for tree in (0, 1):
            await disagree(at, run_id, tree)

        async def decided(task: int) -> list[str]:
            tasks = [one async for one in at.people.list_tasks(run_id)]
            return [one.judgement.name + one.leaf * " leaf" for one in tasks[task].decision.verdicts[:2]]

        page = await at.window("lea", "adjudicator")
        first, second = [page.get_by_role("region", name=f"Disputed: hypothesis {n}") for n in (0, 1)]
        framed = page.locator("tr[data-premise]:focus")
        await second.wait_for()
        for key in ("a", "l", "r"):  # the first one finds no row that it could mean
            await page.keyboard.press(key)
        assert await first.get_by_role("button", pressed=True).all_inner_texts() == ["Leaf", "Refuse"]
        assert await second.locator("tr[data-premise]:focus").count() == 1, "the next one"
        await page.keyboard.press("Control+Enter")
        assert await second.count() == 1, "it is not decided as a whole"
        await press_keys(page, "ArrowUp", "Control+Enter")
        await first.wait_for(state="detached")
        assert await decided(0) == ["EXPLAINS leaf", "DOES_NOT_EXPLAIN"]

        await page.keyboard.press("u")
        await first.get_by_text("What you have decided stands until you decide again").wait_for()
        assert await first.get_by_role("button", pressed=True).all_inner_texts() == ["Leaf", "Refuse"]
        await press_keys(page, "ArrowDown", "ArrowDown", "x", "ArrowUp", "Control+Enter")
        await first.wait_for(state="detached")
        assert await decided(0) == ["EXPLAINS leaf", "ABSTAIN"]

        await page.evaluate("localStorage.setItem('aeenc.keys', 'off')")
        await page.keyboard.press("ArrowDown")
        await framed.wait_for()
        await press_keys(page, "a", "u")
        assert await page.get_by_role("button", pressed=True).count() == 0
        assert await first.count() == 0


async def test_a_decision_speaks_of_what_is_still_disputed_alone(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        run_id = await disputed(at, "hypothesis 0")
        [task] = [one async for one in at.people.list_tasks(run_id)]
        first, second = task.conflicts
        page = await at.window("lea", "adjudicator")
        dispute = page.get_by_role("region", name="Disputed: hypothesis 0")
        for row in (0, 1):
            await dispute.get_by_role("group").nth(row).get_by_role("button", name="Accept").click()
        [by_ann] = [one for one in task.answers if one.annotator == "ann"]
        await at.people.amend(by_ann.answer_id, {first: REFUSES}, "ann")
        await dispute.get_by_role("group").nth(1).wait_for(state="detached")
        async with page.expect_request("**/api/adjudicate") as sent:
            await dispute.get_by_role("button", name="Decide").click()
        assert (await sent.value).post_data_json["verdicts"] == {second: "explains"}
        await dispute.wait_for(state="detached")


async def test_each_person_is_set_beside_what_was_decided(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate", undo_s=0.0) as at:
        await disputed(at, "hypothesis 0")
        page = await at.window("lea", "adjudicator")
        await page.get_by_role("region", name="Disputed: hypothesis 0").wait_for()
        people = page.get_by_role("region", name="People")
        await people.get_by_role("cell", name="ann", exact=True).wait_for()
        assert await people.get_by_text(" of ").count() == 0, "nothing is decided yet"
        await press_keys(page, "ArrowDown", "a", "r", "Control+Enter")
        for name, share in (("ann", "2 of 2"), ("bob", "0 of 2")):
            await people.get_by_role("row").filter(has_text=name).get_by_role("cell", name=share).wait_for()


async def test_disputes_are_read_as_far_as_there_are_any_and_one_look_at_a_time(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    tasks = Overview.tasks

    async def counted(self: Overview, run_id: str, state: Any, limit: int, after: int) -> Any:
        if state is TaskState.CONFLICT:
            read.append(after)
        return await tasks(self, run_id, state, limit, after)

    async with bench(overlap=2, policy="adjudicate") as at:
        run_id = await at.run([f"hypothesis {n}" for n in range(250)], max_depth=0)
        await disagree(at, run_id)
        monkeypatch.setattr(Overview, "tasks", counted)
        page = await at.window("lea", "adjudicator")
        await page.get_by_role("region", name="Disputed: hypothesis 0").wait_for()
        await page.wait_for_timeout(3000)  # the look that follows a connection is over
        assert max(read) < PAGE, "the page of tasks behind the last dispute"

        asked, free = [0, 0], asyncio.Event()  # looks at once, and at most

        async def late(route: Any) -> None:
            asked[0] += 1
            asked[1] = max(asked)
            await free.wait()
            asked[0] -= 1
            await route.continue_()

        await page.route("**/api/disputes*", late)
        for n in range(1, 4):
            await disagree(at, run_id, n)
            await page.wait_for_timeout(2500)
        assert asked[1] == 1, "a look that began before the last one had ended"
        free.set()
        await page.get_by_role("region", name="Disputed: hypothesis 3").wait_for()


async def test_a_list_of_disputes_that_cannot_be_read_is_told(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        await disputed(at, "hypothesis 0")
        page = await at.window("lea", "adjudicator")
        await page.get_by_role("region", name="Disputed: hypothesis 0").wait_for()
        await page.route("**/api/events", lambda route: route.abort())
        release = await held(page, "**/api/queues", "**/api/runs")  # the run is chosen after the answer
        await page.route("**/api/disputes*", lambda route: route.fulfill(status=500, json={"detail": "out of order"}))
        await page.goto(f"{at.url}/#lead")
        await page.reload()
        told = page.get_by_role("alert").filter(has_text="out of order")
        await told.wait_for()
        release()
        await page.get_by_role("heading", name="Agreement").wait_for()
        await page.wait_for_timeout(500)
        assert await told.count() == 1
