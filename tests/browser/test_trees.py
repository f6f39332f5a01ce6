"""The tree in the page: its nodes open on a click, and a finished one is shown whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from browser.test_annotate import read, shown
from browser.test_safety import needs_axe, serious

from support.waiting import eventually

pytestmark = pytest.mark.browser


async def answered(page: Any, query: str, *keys: str) -> None:
    """Answers the task that asks this, and lets the run go on with it."""
    await shown(page, query)
    await read(page)
    for key in (*keys, "Control+Enter"):
        await page.keyboard.press(key)
    await page.get_by_text(f"Submitted: “{query}”").wait_for()
    await page.keyboard.press("g")


async def children(bench: Any, run_id: str, count: int) -> list[str]:
    """The texts of the nodes below the root, once there are so many."""
    texts: list[str] = []

    async def grown() -> bool:
        texts[:] = [node.text for node in (await bench.people.get_tree(run_id, "tree-0")).nodes[1:] if node.task_id]
        return len(texts) == count

    await eventually(grown)
    return texts


@needs_axe
async def test_nodes_open_on_a_click_and_a_finished_tree_is_shown_whole(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"])
        await at.run(["hypothesis 1"], max_depth=0)
        page = await at.window("ann")
        await answered(page, "hypothesis 0", "1", "2")
        first, second = await children(at, run_id, 2)
        await shown(page, first)
        tree = page.get_by_role("tree")
        await tree.get_by_role("button", name=second).click()
        await shown(page, second)
        assert [len(node.holders) for node in (await at.people.get_tree(run_id, "tree-0")).nodes] == [0, 0, 1]
        await tree.get_by_role("button", name="hypothesis 0").click()
        await page.get_by_role("dialog", name="answers").get_by_role("button", name="Save the change").wait_for()
        await page.keyboard.press("Escape")
        await answered(page, second, "1", "l")
        await shown(page, first)
        await page.get_by_label("This node is").select_option("premise_missing")
        await page.keyboard.press("Escape")
        await answered(page, first, "2", "l")
        whole = page.get_by_role("region", name="Finished tree")
        await whole.get_by_role("heading", name="hypothesis 0").wait_for()
        assert await whole.locator(".lacks li").all_inner_texts() == [f"{first} a premise is missing"]
        texts = [
            premise.text for node in (await at.people.get_tree(run_id, "tree-0")).nodes for premise in node.accepted
        ]
        drawn = await whole.get_by_role("treeitem").locator(".text").all_inner_texts()
        assert sorted(set(drawn)) == sorted({"hypothesis 0", *texts})
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            assert not await serious(page)
        await asyncio.sleep(1)
        assert await whole.count() == 1, "it stays until its person goes on"
        await whole.get_by_role("button", name=first).first.click()
        await page.get_by_role("dialog", name="answers").get_by_role("button", name="Save the change").wait_for()
        await page.keyboard.press("Escape")
        await page.keyboard.press("k")
        await shown(page, "hypothesis 1")


async def test_an_author_learns_what_was_decided_otherwise(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate", undo_s=0.0) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        [lease] = await at.people.lease("ann", run_id=run_id)
        first, second = (one.premise.id for one in lease.task.candidates[:2])
        await at.people.submit(lease, [first])
        [other] = await at.people.lease("bob", run_id=run_id)
        await at.people.submit(other, [second])
        page = await at.window("ann")
        for told, count in (("disputed", 2), ("decided: refused, by lea", 1)):
            await page.get_by_text("Nothing waits for you").wait_for()
            await page.keyboard.press("o")
            answers = page.get_by_role("dialog", name="answers")
            await answers.get_by_role("button", name="Reopen").click()
            await answers.get_by_text(told).first.wait_for()
            assert await answers.get_by_text(told).count() == count
            await page.keyboard.press("Escape")
            if count > 1:
                said = {first: "DOES_NOT_EXPLAIN", second: "DOES_NOT_EXPLAIN"}
                await at.people.adjudicate(run_id, lease.task.task_id, dict.fromkeys(said, 2), "lea")
