"""Every view shows the latest question in plain words, fits any window, and loses nothing that was typed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import press_keys, shown, submitted
from browser.test_annotate import not_explainable, read
from browser.test_lead import disputed
from browser.test_page import leave, nobody_holds
from browser.test_safety import findings, needs_axe
from browser.test_sight import ROWS

from support.waiting import eventually

pytestmark = pytest.mark.browser


async def test_a_late_answer_to_an_earlier_question_replaces_no_later_one(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        runs = [await at.run([f"hypothesis {n}"], max_depth=0) for n in (0, 1)]
        for run in runs:
            [lease] = await at.people.lease("ann", run_id=run)
            await at.people.submit(lease, [lease.task.candidates[0].premise.id])
        await at.run(["hypothesis 2"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 2")
        free = asyncio.Event()
        hits = {"hits": [{"id": "hit", "text": "a hit", "score": 1}], "version": "v", "generation": "g"}

        async def late(route: Any) -> None:
            await free.wait()
            found = {**hits, "hits": [{"id": "late", "text": "a late hit", "score": 1}]}
            await (route.continue_() if "answers" in route.request.url else route.fulfill(json=found))

        await page.route("**/api/compare", lambda route: route.fulfill(json=hits))  # this index compares nothing
        for path in ("search", "compare", f"runs/{runs[0]}/answers"):
            await page.route(f"**/api/{path}", late, times=1)

        await page.keyboard.press("o")
        answers = page.get_by_role("dialog", name="answers")
        for run in runs:
            await answers.locator("select").select_option(run)
        await answers.get_by_text("hypothesis 1").wait_for()
        async with page.expect_response("**/answers"):
            free.set()
        await page.wait_for_timeout(300)
        assert await answers.get_by_text("hypothesis 0").count() == 0
        await page.keyboard.press("Escape")

        free.clear()
        await page.keyboard.press("/")
        region = page.get_by_role("region", name="Search the corpus")
        for text in ("one", "two"):
            await region.get_by_role("textbox").fill(text)
            await page.keyboard.press("Enter")
        await region.get_by_role("button", name="Add", exact=True).first.wait_for()
        free.set()
        await page.wait_for_timeout(300)
        assert await page.get_by_text("a late hit").count() == 0

        free.clear()
        await page.goto(f"{at.url}/#playground")
        for text in ("fact 1", "fact 2"):
            await page.get_by_label("Hypothesis").fill(text)
            await page.get_by_role("button", name="Retrieve").click()
        await page.get_by_role("region", name="Left").get_by_role("listitem").first.wait_for()
        free.set()
        await page.wait_for_timeout(300)
        assert await page.get_by_text("a late hit").count() == 0


async def test_what_a_search_has_found_is_reached_by_arrows_and_the_frame_stays(bench: Any) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("/")
        await page.keyboard.type("fact")
        await page.keyboard.press("Enter")
        hits = page.get_by_role("region", name="Search the corpus").get_by_role("listitem")
        await hits.nth(1).wait_for()
        second = (await hits.nth(1).inner_text()).split("\n")[-1].removeprefix("Add").strip()
        await press_keys(page, "ArrowDown", "ArrowDown", "Enter")
        added = page.get_by_role("list", name="Added").get_by_role("listitem")
        assert second in await added.inner_text()
        assert "focused" in await page.locator(".candidates:not(.added) > li").first.get_attribute("class")
        await press_keys(page, "ArrowUp", "ArrowUp", "x")
        box = page.get_by_role("region", name="Search the corpus").get_by_role("textbox")
        assert await box.input_value() == "factx"


async def test_the_playground_names_the_way_and_what_only_one_of_two_finds(bench: Any) -> None:
    async with bench() as at:
        page = await at.window("ann")

        async def found(route: Any) -> None:
            hits = [{"id": one, "text": one, "score": 1} for one in ("both", "one")]
            dense = route.request.post_data_json["mode"] == "dense"
            await route.fulfill(json={"hits": hits if dense else hits[:1], "version": "q0", "generation": "g"})

        await page.route("**/api/compare", found)
        await page.goto(f"{at.url}/#playground")
        await page.get_by_label("Hypothesis").fill("fact 1")
        await page.get_by_role("button", name="Retrieve").click()
        left, right = [page.get_by_role("region", name=name) for name in ("Left", "Right")]
        await left.get_by_role("listitem").filter(has_text="one").get_by_text("only here").wait_for()
        assert [await side.get_by_text("only here").count() for side in (left, right)] == [1, 0]
        assert (await left.get_by_title("q0").inner_text()).endswith(" ms, stable"), "its id is the title"


@needs_axe
@pytest.mark.parametrize("size", [(390, 844), (640, 400), (1440, 900)])
async def test_no_view_scrolls_sideways_or_has_a_fault_of_accessibility(bench: Any, size: tuple[int, int]) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        at.world.index.suffix = " " + "x" * 300  # a long word
        run_id = await disputed(at, "hypothesis 0")
        await at.run([f"hypothesis 1 {'y' * 300}"], k=9)
        page = await at.window("chief", "admin")
        await page.set_viewport_size({"width": size[0], "height": size[1]})
        await page.get_by_role("link", name="Annotate").click()
        await shown(page, "hypothesis 1")
        wide, faults = {}, {}

        async def look(view: str) -> None:
            wide[view] = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                faults[f"{view}, {scheme}"] = await findings(page)

        await page.keyboard.press("/")
        await page.keyboard.type("fact")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Add", exact=True).first.click()
        await look("search")
        await page.keyboard.press("Escape")
        await look("annotate")
        await page.keyboard.press("o")
        await page.get_by_label("Run").select_option(run_id)
        earlier = page.get_by_role("button", name="Reopen: hypothesis 0").first
        await earlier.wait_for()
        await look("answers")
        await earlier.click()
        await shown(page, "hypothesis 0")
        await look("earlier answer")
        await page.keyboard.press("k")
        await shown(page, "hypothesis 1")
        await page.keyboard.press("?")
        await page.get_by_role("dialog", name="Guideline").wait_for()
        await look("guideline")
        await page.keyboard.press("Escape")
        for view, there in (
            ("Lead", "Agreement"),
            ("People", "People"),
            ("Training", "Labels"),
            ("Playground", "Playground"),
        ):
            await page.goto(f"{at.url}/#{view.lower()}")
            if view != "Training":  # it needs a trainer
                await page.get_by_role("heading", name=there).wait_for()
            await look(view)
        await page.goto(f"{at.url}/?practice")
        await shown(page, "a fern")
        await look("practice")
        await press_keys(page, "3", "Control+Enter")
        await page.get_by_role("dialog", name="What the gold tree says").wait_for()
        await look("gold tree")
        assert not any(faults.values()), faults
        assert max(wide.values()) <= 0, wide


async def test_what_is_refused_is_said_in_the_terms_of_the_page(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        await at.run(["hypothesis 0", "hypothesis 1", "hypothesis 2"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("/")
        box = page.get_by_role("region", name="Search the corpus").get_by_role("textbox")
        await box.fill("x" * 6000)
        assert len(await box.input_value()) == 1024
        await box.fill("Hypothesis 0")
        await page.get_by_role("button", name="Write as an intermediate conclusion").click()
        await page.get_by_text("a tree may not lead back to itself").wait_for()
        assert await page.get_by_role("list", name="Added").get_by_role("listitem").count() == 0
        await page.keyboard.press("Escape")
        other = await page.context.new_page()
        await other.goto(at.url)
        await shown(other, "hypothesis 0")
        for tab in (page, other):
            await press_keys(tab, "1", "Control+Enter")
            await shown(tab, "hypothesis 1" if tab is page else "hypothesis")
        told = other.get_by_role("alert")
        await told.get_by_text("This task was answered before, perhaps in another tab.").wait_for()
        assert "lease" not in await told.inner_text()


async def test_a_guideline_is_drawn_and_there_is_one_with_a_tree_without_any(bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "guideline.md"
    file.write_text(
        "# Ours\n\n**only** [Examples](https://example.org/a)\n\n1. one\n2. two `x`\n\n<b>raw</b> [no](javascript:1)\n"
    )
    for given in (str(file), None):
        async with bench(guideline=given) as at:
            await at.run(["hypothesis 0"], max_depth=0)
            page = await at.window("ann", shows="hypothesis 0")
            await page.get_by_role("button", name="Read the guideline first").click()
            guideline = page.get_by_role("dialog", name="Guideline")
            if given is None:
                await guideline.get_by_text("fluffed feathers trap a layer of air").wait_for()
                continue
            await guideline.get_by_role("heading", name="Ours").wait_for()
            assert await guideline.locator("strong").inner_text() == "only"
            assert await guideline.get_by_role("link", name="Examples").get_attribute("href") == "https://example.org/a"
            assert await guideline.locator("ol li").all_inner_texts() == ["one", "two x"]
            assert await guideline.get_by_text("<b>raw</b> [no](javascript:1)").count() == 1
            await page.keyboard.press("Escape")
            assert await page.get_by_text("re-rank").count() == 0, "a key that does nothing"


async def test_a_key_that_cannot_rank_again_says_why_and_is_listed_only_while_it_can(bench: Any) -> None:
    async with bench(overlap=2) as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        for key, told in (("e", "No newer encoder was published"), ("?", "this page")):
            await page.keyboard.press(key)
            await page.get_by_text(told).wait_for()
        assert await page.get_by_text("re-rank with the newer").count() == 0, "a key that does nothing"
        await page.keyboard.press("Escape")
        await at.people.lease("bob", run_id=run_id)
        at.world.index.stable = "version-2"

        async def told() -> bool:
            await page.keyboard.press("e")
            return bool(await page.get_by_text("others have begun this task, too").count())

        await eventually(told, 15)
        await press_keys(page, "1", "Control+Enter")
        await shown(page, "hypothesis 1")
        await page.get_by_text("A newer encoder was published").wait_for()
        await page.keyboard.press("?")
        await page.get_by_text("re-rank with the newer").wait_for()


async def test_undo_outlives_a_reload_and_clear_can_be_taken_back(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await press_keys(page, "2", "n")
        await page.keyboard.type("my note")
        note = page.get_by_label("Note")
        await page.get_by_role("button", name="Clear").click()
        ticked = page.locator(".candidates [aria-pressed=true]")
        assert (await note.input_value(), await ticked.count()) == ("", 0)
        await page.get_by_role("button", name="Bring back").click()
        assert (await note.input_value(), await page.locator(".candidates [aria-pressed=true]").count()) == (
            "my note",
            1,
        )
        await submitted(page)
        await page.reload()
        await page.get_by_role("button", name="Undo").wait_for()
        await page.keyboard.press("u")
        await shown(page, "hypothesis 0")
        assert await note.input_value() == "my note"
        assert not any([task.answers async for task in at.people.list_tasks(run_id)])
        await press_keys(page, "Escape", "u")
        await page.get_by_text("There is nothing to undo any more.").wait_for()


async def test_who_comes_back_late_gets_the_same_task_or_hears_that_it_is_gone(bench: Any) -> None:
    async with bench(first_lease_s=1.5, min_lease_s=1.5) as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann")
        for taken in (False, True):
            await shown(page, "hypothesis 0")
            if not taken:
                await page.keyboard.press("2")
            await page.goto(f"{at.url}/#playground")
            await page.get_by_role("heading", name="Playground").wait_for()

            await asyncio.sleep(2)
            if taken:
                [task] = [one.task async for one in at.people.list_tasks(run_id) if one.task.query == "hypothesis 0"]

                async def by_bob(task_id: str = task.task_id) -> bool:
                    return bool(await at.people.lease("bob", run_id=run_id, task_id=task_id))

                await eventually(by_bob)
            await page.goto(f"{at.url}/#annotate")
            await shown(page, "hypothesis 1" if taken else "hypothesis 0")
            if not taken:
                await page.locator('.tick[aria-pressed="true"]').wait_for()
                await page.locator(".gutter.seen").first.wait_for()
                assert await page.get_by_text("Your time for").count() == 0, "it is the same task"
        await page.get_by_text("Your time for “hypothesis 0” has ended").wait_for()


async def test_who_comes_back_after_their_run_was_deleted_hears_of_that(bench: Any) -> None:
    over = "Object.entries(localStorage).some(([name, value]) => name.startsWith('aeenc.lease.') && \
        Date.parse(JSON.parse(value).expires_at) < Date.now())"
    async with bench(first_lease_s=1.5, min_lease_s=1.5) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("2")
        await leave(page)
        await at.sampler.cancel(run_id)
        await at.sampler.wait(run_id)
        await at.sampler.delete(run_id)
        await eventually(lambda: page.evaluate(over))
        await page.get_by_role("link", name="Annotate").click()
        told = page.get_by_text("Your time for “hypothesis 0” has ended")
        await told.wait_for()
        assert run_id in await told.inner_text(), "what the sampler says of it"


async def test_the_line_is_drawn_dragged_and_taken_away_with_the_mouse(bench: Any) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], k=9, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await read(page, 6)
        rows = page.get_by_role("list", name="Candidates").get_by_role("listitem")
        await rows.nth(1).locator(".gutter").click()
        label = page.get_by_text("You stopped here")
        assert await rows.nth(1).get_by_text("You stopped here").count() == 1
        await page.get_by_text("7 of 9 not seen").wait_for()
        await label.hover()
        await page.mouse.down()
        await rows.nth(3).hover()
        assert await rows.nth(3).get_by_text("You stopped here").count() == 1
        await page.get_by_text("5 of 9 not seen").wait_for()
        await page.mouse.up()
        await rows.nth(0).hover()
        assert await rows.nth(3).get_by_text("You stopped here").count() == 1, "it stays once it is let go"
        assert "focused" in str(await rows.nth(0).get_attribute("class")), "and frames nothing"
        await rows.nth(3).locator(".gutter").click()
        assert await label.count() == 0


async def test_a_person_names_two_ways_to_explain_of_candidates_and_additions(bench: Any) -> None:
    async with bench(max_grade=3.0) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await press_keys(page, *"123")
        ways = page.get_by_role("combobox", name="way")
        assert await ways.count() == 0, "nobody is asked which way where there is one"
        await page.get_by_label("there are several ways to explain it").check()
        candidates, added = (page.get_by_role("list", name=name) for name in ("Candidates", "Added"))
        await press_keys(page, "/", *"fact", "Enter")
        assert await page.get_by_label("by").locator("option").all_inner_texts() == [
            "words and meaning",
            "meaning",
            "words",
        ]
        await page.get_by_role("button", name="Add", exact=True).first.click()
        await candidates.get_by_role("combobox", name="way").nth(1).select_option("1")
        await candidates.get_by_role("combobox", name="way").nth(2).select_option("2")
        await added.get_by_role("combobox", name="way").select_option("2")
        await added.get_by_role("spinbutton", name="grade").fill("2")
        await submitted(page)
        [task] = [one async for one in at.people.list_tasks(run_id)]
        first, second, third, _ = (one.premise.id for one in task.task.candidates)
        [addition] = task.answers[0].additions
        ways = [set(one.premise_ids) for one in task.answers[0].alternatives]
        assert ways == [{first, second}, {first, third, addition.premise_id}]
        assert addition.grade == 2


@pytest.mark.parametrize(("stays", "before"), [(True, False), (False, False), (False, True)])
async def test_a_task_that_comes_late_replaces_none_that_was_asked_for_since_and_goes_back(
    bench: Any, stays: bool, before: bool
) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.get_by_label("stay in this tree").set_checked(stays)
        await not_explainable(page)
        await submitted(page)
        await page.get_by_text("Nothing waits for you").wait_for()
        free, came = asyncio.Event(), asyncio.Event()
        asks: list[Any] = []

        async def late(route: Any) -> None:
            asks.append(route)
            if len(asks) == 1:
                await free.wait()
            elif before:  # the earlier task comes first
                free.set()
                await came.wait()
            await route.continue_()

        await page.route("**/api/lease", late)
        async with page.expect_request("**/api/lease"):
            other = await at.run(["hypothesis 1"], max_depth=0)
        if not before:
            await page.keyboard.press("u")
            await shown(page, "hypothesis 0")
        async with page.expect_response("**/api/lease"):
            await page.keyboard.press("u") if before else free.set()
        came.set()

        await nobody_holds(at, other)
        await shown(page, "hypothesis 0")
        await page.get_by_role("treeitem", selected=True).wait_for()


async def test_what_was_ticked_is_kept_when_somebody_else_takes_the_task_that_was_taken_back(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await submitted(page, "2")
        taken: list[Any] = []

        async def by_bob(route: Any) -> None:
            while "task" in route.request.post_data_json and not taken:
                taken.extend(await at.people.lease("bob", run_id=run_id))
            await route.continue_()

        await page.route("**/api/lease", by_bob)
        await page.get_by_role("button", name="Undo").click()
        await page.get_by_text("Taken back; somebody else has that task now.").wait_for()
        [lease] = taken
        await at.people.release(lease.lease_id)
        await shown(page, "hypothesis 0")
        pressed = page.locator(".candidates [aria-pressed=true]")
        assert await pressed.all_inner_texts() == ["2"]


async def test_bringing_back_what_was_cleared_keeps_what_was_read_since(bench: Any) -> None:
    async with bench() as at:
        at.world.index.suffix = " and so on" * 40
        await at.run(["hypothesis 0"], k=30, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("1")
        await page.get_by_role("button", name="Clear").click()
        last = page.locator(ROWS).last.locator(".gutter.seen")
        assert await last.count() == 0
        await page.mouse.move(800, 300)
        await page.mouse.wheel(0, 100_000)
        await last.wait_for()
        await page.get_by_role("button", name="Bring back").click()
        assert await page.locator(".candidates [aria-pressed=true]").count() == 1
        assert await last.count() == 1
