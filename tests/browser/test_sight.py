"""Only what was in sight for a second is refused; the frame stays in sight; one task stands alone."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from browser.conftest import press_keys, shown, submitted

from aeenc import values
from support.waiting import eventually
from support.worlds.browser_sight import AREA, HIDE, RECORD, SIGHT_MS, Walked, Walker, check, record, seen

pytestmark = pytest.mark.browser
ANSWERS, LONGEST_S = 12, 75.0  # of a walk; `make bench NAME=workbench ARGS='--only walks'` is the long form
KEYS = 6
ROWS = '[aria-label^="Candidates"] > li'


async def judgements(bench: Any, run_id: str, task: int = 0) -> list[str]:
    tasks = [one async for one in bench.people.list_tasks(run_id)]
    return [one.judgement.name for answer in tasks[task].answers for one in answer.verdicts]


async def boxes(page: Any) -> list[Any]:
    """Where each row stands."""
    return [await row.bounding_box() for row in await page.locator(ROWS).all()]


async def submit_button(page: Any) -> tuple[float, float]:
    """The middle of the button that submits."""
    box = await page.get_by_role("button", name="Submit").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


async def held(page: Any, *paths: str, of: Callable[[Any], bool] = lambda _: True) -> Callable[[], None]:
    """Holds the requests to paths back, or those `of` them that this is true of, until what it returns is called."""
    free = asyncio.Event()

    async def late(route: Any) -> None:
        if of(route.request):
            await free.wait()
        await route.continue_()

    for path in paths:
        await page.route(path, late)
    return free.set


async def test_a_new_task_opens_at_its_hypothesis(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        await at.run(["hypothesis 0", "hypothesis 1"], k=50, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("1")
        await page.mouse.move(800, 400)
        await page.mouse.wheel(0, 900)
        await eventually(lambda: page.evaluate("scrollY > 500"))
        await page.get_by_role("button", name="Submit").click()
        await shown(page, "hypothesis 1")
        await eventually(lambda: page.evaluate("scrollY === 0"))
        assert await page.evaluate("document.activeElement.tagName") == "H1"


async def test_what_was_not_in_sight_for_a_second_is_unseen(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], k=50, max_depth=0)
        page = await at.window("ann")
        await record(page)
        await shown(page, "hypothesis 0")
        await page.mouse.move(800, 400)
        await page.mouse.wheel(0, 10_000)
        await page.wait_for_timeout(1500)
        await page.keyboard.press("1")
        await page.get_by_text("not seen", exact=False).first.wait_for()
        await submitted(page)
        said = await judgements(at, run_id)
        [task] = [one async for one in at.people.list_tasks(run_id)]
        times = await seen(page)
        verdicts = {one.premise_id: one for one in task.answers[0].verdicts}
        for candidate, judgement in zip(task.task.candidates, said, strict=True):
            in_sight_ms = times.get(f"hypothesis 0\n{candidate.premise.text}", 0.0)
            assert verdicts[candidate.premise.id].in_sight_ms <= in_sight_ms + 200, candidate
            if judgement == "DOES_NOT_EXPLAIN":
                assert in_sight_ms >= SIGHT_MS, candidate
                assert verdicts[candidate.premise.id].in_sight_ms >= SIGHT_MS, candidate
        assert said[0] == "EXPLAINS"
        assert said[1:6] == ["UNSEEN"] * 5
        assert said[-1] == "DOES_NOT_EXPLAIN"


async def test_a_row_behind_the_bar_a_tab_behind_another_and_a_dialog_hide(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], k=9, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await record(page)
        await page.evaluate(HIDE, True)
        await page.set_viewport_size({"width": 1280, "height": 500})
        await page.keyboard.press("1")
        await page.wait_for_timeout(1300)
        assert await page.locator(".gutter.seen").count() == 0
        await page.keyboard.press("?")
        await page.evaluate(HIDE, False)
        await page.wait_for_timeout(1300)
        assert await page.locator(".gutter.seen").count() == 0
        await page.keyboard.press("Escape")
        await page.locator(".gutter.seen").first.wait_for()
        bar = await page.locator("footer.bar").bounding_box()
        hidden = [
            n
            for n, row in enumerate(await page.locator(f"{ROWS} .text").all())
            if (box := await row.bounding_box()) and box["y"] + box["height"] > bar["y"]
        ]
        assert hidden
        await submitted(page)
        said = await judgements(at, run_id)
        assert [said[n] for n in hidden] == ["UNSEEN"] * len(hidden)
        assert "DOES_NOT_EXPLAIN" in said


@pytest.mark.parametrize(("key", "close"), [("?", "dialog button"), ("/", ".search button.plain")])
async def test_what_opens_and_closes_between_two_looks_hides(bench: Any, key: str, close: str) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], k=9, max_depth=0)
        page = await at.window("ann")
        await page.add_init_script(f"window.KEY = {json.dumps(key)}; window.CLOSE = {json.dumps(close)};")
        await page.add_init_script("""
            const find = Document.prototype.querySelectorAll;
            let closes;
            window.opened = 0;
            Document.prototype.querySelectorAll = function (what) {
                if (what === "[data-premise]" && !closes) {
                    const key = new KeyboardEvent("keydown", { key: KEY, bubbles: true });
                    setTimeout(() => document.body.dispatchEvent(key), 5);
                    closes = setTimeout(() => {
                        closes = undefined;
                        const button = document.querySelector(CLOSE);
                        if (button) { window.opened += 1; button.click(); }
                    }, 70);
                }
                return find.call(this, what);
            };
        """)
        await page.add_init_script(RECORD)
        await page.set_viewport_size({"width": 1280, "height": 480})
        await page.reload()
        await shown(page, "hypothesis 0")
        await eventually(lambda: page.evaluate("window.opened >= 14"))
        read = await page.locator(f"{ROWS}:has(.gutter.seen) .text").all_inner_texts()
        times = await seen(page)
        assert len(read) < await page.locator(ROWS).count()
        assert all(times[f"hypothesis 0\n{text.strip()}"] >= SIGHT_MS for text in read), times


@pytest.mark.parametrize("hidden", [False, True], ids=["as it opens", "as it comes to the front"])
async def test_nothing_is_in_sight_before_a_frame_draws_it(bench: Any, hidden: bool) -> None:
    """A window that draws a frame a second, as one that is covered may do."""
    async with bench() as at:
        await at.run(["hypothesis 0"], k=9, max_depth=0)
        page = await at.window("ann")
        await page.add_init_script("""
            const waiting = [];
            window.requestAnimationFrame = (then) => waiting.push(then);
            window.draw = () => waiting.splice(0).forEach((then) => then(performance.now()));
        """)
        await page.add_init_script(RECORD)
        await page.reload()
        await shown(page, "hypothesis 0")
        rows = page.locator(".gutter.seen")
        for _ in range(12):
            if hidden:
                await page.evaluate(HIDE, True)
                await page.evaluate("draw()")
                await page.evaluate(HIDE, False)
            await page.wait_for_timeout(300)
            await page.evaluate("draw()")
            await page.wait_for_timeout(50)
            if read := await rows.count():
                break
        assert hidden or read
        assert not read or max((await seen(page)).values()) >= SIGHT_MS


async def test_a_text_taller_than_the_window_is_read_line_by_line(bench: Any) -> None:
    async with bench() as at:
        at.world.index.suffix = " and so on" * 150
        await at.run(["hypothesis 0"], k=1, max_depth=0)
        page = await at.window("ann")
        await record(page)
        await shown(page, "hypothesis 0")
        await page.set_viewport_size({"width": 900, "height": 420})
        await page.wait_for_timeout(1500)
        assert await page.locator(".gutter.seen").count() == 0
        for _ in range(12):
            await page.keyboard.press("ArrowDown")
            await page.wait_for_timeout(1200)
            if await page.locator(".gutter.seen").count():
                break
        assert await page.locator(".gutter.seen").count() == 1
        await page.set_viewport_size({"width": 640, "height": 420})  # other lines
        await page.wait_for_timeout(1500)
        assert await page.locator(".gutter.seen").count() == 1
        [in_sight_ms] = (await seen(page)).values()
        assert in_sight_ms >= SIGHT_MS, "the recorder, too, takes it for read"


async def test_an_empty_answer_is_asked_about_and_two_clicks_send_one(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1", "hypothesis 2"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("1")
        await page.set_viewport_size({"width": 1280, "height": 420})  # the bar stays where it is
        spot = await submit_button(page)
        await page.mouse.click(*spot)
        await page.wait_for_timeout(600)
        await page.mouse.click(*spot)
        await page.wait_for_timeout(1500)
        await page.mouse.click(*spot)
        question = page.get_by_role("alertdialog", name="Nothing is accepted")
        await question.wait_for()
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.keyboard.press("Control+Enter")
        await page.locator(".gutter.seen").nth(3).wait_for()
        assert [len(task.answers) async for task in at.people.list_tasks(run_id)] == [1, 0, 0]
        await question.get_by_role("button", name="Nothing explains it").click()
        await shown(page, "hypothesis 2")
        [_, second, _] = [task async for task in at.people.list_tasks(run_id)]
        assert second.answers[0].node_verdict is values.NodeVerdict.NOT_EXPLAINABLE
        assert [one.judgement.name for one in second.answers[0].verdicts] == ["DOES_NOT_EXPLAIN"] * 4


@pytest.mark.parametrize(("size", "down"), [((1280, 1000), 0), ((390, 844), 0), ((640, 400), 9000)])
async def test_a_second_press_on_submit_neither_judges_nor_answers_what_came_under_it(
    bench: Any, size: tuple[int, int], down: int
) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann")
        await page.set_viewport_size({"width": size[0], "height": size[1]})
        await shown(page, "hypothesis 0")
        await page.locator(ROWS).first.evaluate("(row) => row.scrollIntoView({ block: 'center' })")
        await page.locator(".gutter.seen").first.wait_for()
        await page.evaluate(f"scrollTo(0, {down})")
        spot = await submit_button(page)
        question = page.get_by_role("alertdialog", name="Nothing is accepted")
        for _ in range(3):
            await page.mouse.click(*spot)
            await question.wait_for()
            await page.wait_for_timeout(300)
        assert await question.count() == 1
        assert await page.locator('.candidates [aria-pressed="true"]').count() == 0
        assert await judgements(at, run_id) == []


async def test_the_question_keeps_the_focus_where_its_person_has_moved_it(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.locator(".gutter.seen").nth(3).wait_for()
        await page.keyboard.press("Control+Enter")
        await page.get_by_role("alertdialog", name="Nothing is accepted").wait_for()
        await page.wait_for_timeout(1200)  # before, a press was meant for what stood there
        await page.keyboard.press("Tab")
        await page.wait_for_timeout(1200)  # the page is drawn anew meanwhile
        await page.keyboard.press("Enter")
        await page.get_by_text("Submitted").wait_for()
        assert await judgements(at, run_id) == ["DOES_NOT_EXPLAIN"] * 4


async def test_no_row_moves_when_the_page_tells_what_became_of_the_last_answer(bench: Any) -> None:
    async with bench(overlap=2) as at:
        await at.run(["hypothesis 0", "hypothesis 1"], k=9, max_depth=0)
        page = await at.window("ann")
        await page.set_viewport_size({"width": 390, "height": 844})
        await shown(page, "hypothesis 0")
        free = asyncio.Event()

        async def late(route: Any) -> None:
            if "hypothesis 1" in await page.locator("h1").inner_text():  # before, the next task waits for the tree
                await free.wait()
            await route.continue_()

        await page.route("**/tree?hypothesis=tree-0", late)
        await press_keys(page, "1", "Control+Enter")
        await shown(page, "hypothesis 1")
        await page.get_by_text("Submitted").wait_for()
        before = await boxes(page)
        free.set()
        await page.get_by_text("One more person answers it").wait_for()
        assert await boxes(page) == before


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800), (640, 400)])
async def test_the_framed_row_is_wholly_in_sight_after_each_of_200_keys(bench: Any, width: int, height: int) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], k=50, max_depth=0)
        page = await at.window("ann")
        await page.set_viewport_size({"width": width, "height": height})
        await shown(page, "hypothesis 0")
        rng = random.Random(width)
        keys = ["ArrowDown"] * 45 + ["ArrowUp"] * 30
        keys += rng.choices(["ArrowDown", "ArrowUp", "a", "l", "r", "x", "i", "b", "s", *"123456789"], k=125)
        for count, key in enumerate(keys, 1):
            await page.keyboard.press(key)
            above, below = await page.evaluate(AREA)
            assert min(above, below) > -1, f"key {count}, {key}: {above:.0f} above, {below:.0f} below"


@pytest.mark.parametrize(
    ("keys", "gold"),
    [
        ("12", {1: False, 2: False}),
        ("37", {3: False, 7: False}),
        ("8l9l", {8: True, 9: True}),
        ("6la", {6: True, 7: False}),  # a digit moves the frame, and a letter goes to the next row
    ],
)
async def test_nine_candidates_with_two_gold_take_at_most_six_keys(
    bench: Any, keys: str, gold: dict[int, bool]
) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], k=9, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.locator(".gutter.seen").nth(8).wait_for()
        assert len(keys) + 1 <= KEYS, "and Control+Enter"
        await submitted(page, *keys)
        [task] = [one async for one in at.people.list_tasks(run_id)]
        said = {n: one.leaf for n, one in enumerate(task.answers[0].verdicts, 1) if one.judgement.name == "EXPLAINS"}
        assert said == gold
        assert {one.judgement.name for one in task.answers[0].verdicts} == {"EXPLAINS", "DOES_NOT_EXPLAIN"}


async def test_a_row_does_not_grow_under_the_mouse_or_in_the_frame(bench: Any) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], k=9, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.get_by_text("unread").first.wait_for(state="detached")
        before = await boxes(page)
        await page.locator(ROWS).nth(3).hover()
        assert await boxes(page) == before
        await page.locator(ROWS).nth(4).locator(".text").click()
        assert await boxes(page) == before


async def test_the_tree_of_the_last_task_never_stands_beside_the_next(bench: Any) -> None:
    async with bench() as at:
        roots = [(f"tree-{n}", f"hypothesis {n}", f"question {n}", f"answer {n}") for n in (0, 1)]
        await at.sampler.start_run(roots, corpus="science", oracle="team", k=4, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.get_by_text("question 0").wait_for()
        release = await held(page, "**/tree?hypothesis=tree-0")
        await page.keyboard.press("1")
        await page.reload()
        await shown(page, "hypothesis 0")
        await page.evaluate("fetch('/api/me')")
        await page.keyboard.press("k")
        await shown(page, "hypothesis 1")
        await page.get_by_text("question 1").wait_for()
        release()
        await page.wait_for_timeout(700)
        assert await page.get_by_text("question 0").count() == 0
        assert await page.get_by_text("question 1").count() == 1


async def test_what_is_judged_is_frozen_while_it_is_sent(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("1")
        release = await held(page, "**/api/answer")
        await press_keys(page, "Control+Enter", "2")
        await page.locator(ROWS).nth(2).click(force=True)
        assert await page.locator('.candidates [aria-pressed="true"]').count() == 1
        await page.get_by_role("button", name="Sending").wait_for()
        release()
        await page.get_by_text("Submitted").wait_for()
        assert (await judgements(at, run_id)).count("EXPLAINS") == 1


async def test_a_renewal_that_the_answer_overtook_is_no_error(bench: Any) -> None:
    async with bench(first_lease_s=15.0, min_lease_s=15.0, undo_s=0.0) as at:
        await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("1")
        release = await held(page, "**/api/renew")
        async with page.expect_request("**/api/renew"):
            pass
        await page.keyboard.press("Control+Enter")
        await shown(page, "hypothesis 1")
        await page.get_by_text("Submitted").wait_for()
        async with page.expect_response("**/api/renew"):
            release()
        await page.wait_for_timeout(300)
        assert await page.get_by_role("alert").count() == 0


async def test_the_page_says_what_becomes_of_an_answer(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate", undo_s=2.0) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await submitted(page, "1")
        await page.get_by_text("One more person answers it before the tree grows.").wait_for()
        assert await page.get_by_role("button", name="Go on now").count() == 0
        await page.keyboard.press("g")
        await page.get_by_role("alert").get_by_text("cannot go on with it yet").wait_for()
        await page.wait_for_timeout(2500)
        assert await page.get_by_text("The run goes on with it").count() == 0
        [lease] = await at.people.lease("bob", run_id=run_id)
        await at.people.submit(lease, [lease.task.candidates[1].premise.id])
        await page.get_by_text("People disagree on it: an adjudicator decides.").wait_for()


async def test_a_panel_opens_where_one_looks(bench: Any) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], k=50, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.mouse.move(800, 400)
        for key, name in (("/", "Search the corpus"), ("?", "Guideline"), ("o", "answers")):
            await page.mouse.wheel(0, 900)
            await eventually(lambda: page.evaluate("scrollY > 500"))
            await page.keyboard.press(key)
            role = "region" if key == "/" else "dialog"
            box = await page.get_by_role(role, name=name).bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 800
            await page.keyboard.press("Escape")


async def test_whatever_people_do_nothing_unseen_is_refused_and_no_answer_goes_astray(bench: Any) -> None:
    async with bench(undo_s=1.0) as at:
        at.world.index.suffix = " and so on" * 4
        runs = [await at.run([f"k{k} hypothesis {n}" for n in range(30)], k=k, max_depth=0) for k in (9, 50)]
        walked = Walked()
        pages = [(await at.window(f"walker{n}"), n, width) for n, width in enumerate((390, 1280, 1440))]
        walkers = [Walker(page, f"walker{n}", width, walked) for page, n, width in pages]
        for walker in walkers:
            await walker.start()
        ends = time.monotonic() + LONGEST_S
        await asyncio.gather(*(walker.walk(ANSWERS, ends) for walker in walkers))
        await asyncio.sleep(2)
        await check(walkers, at.people, runs, walked)
        assert walked.answers > 0
        wrong = (walked.refused_unseen, walked.of_another_task, walked.lost, walked.twice)
        assert wrong == ([], [], [], []), walked
