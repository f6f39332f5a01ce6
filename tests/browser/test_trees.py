"""The tree in the page: its nodes open on a click, a finished one is shown whole, and one is there to practise on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import press_keys, shown, submitted
from browser.test_annotate import answered, read
from browser.test_safety import findings, needs_axe
from browser.test_sight import ROWS, held

from aeenc.oracle import ABSTAINS, EXPLAINS, IRRELEVANT, REFUSES, UNSEEN, Answer, Verdict
from aeenc.trees import Dataset
from support.waiting import eventually

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
PRACTICE = ROOT / "clients" / "workbench" / "page" / "src" / "practice.json"


async def reopened(page: Any) -> None:
    """Opens the answer on hypothesis 0 to change it."""
    await page.keyboard.press("o")
    await page.get_by_role("button", name="Reopen: hypothesis 0").click()
    await shown(page, "hypothesis 0")


async def children(bench: Any, run_id: str, count: int) -> list[str]:
    """The texts of the nodes below the root, once there are so many."""

    async def below() -> list[str]:
        return [node.text for node in (await bench.people.get_tree(run_id, "tree-0")).nodes[1:] if node.task_id]

    return await eventually(below, is_so=lambda texts: len(texts) == count)


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
        await shown(page, "hypothesis 0")
        await page.get_by_text("You are changing your answer").wait_for()
        await page.keyboard.press("k")
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
            assert not await findings(page)
        await asyncio.sleep(1)
        assert await whole.count() == 1, "it stays until its person goes on"
        await whole.get_by_role("button", name=first).first.click()
        await page.get_by_role("button", name="Save the change").wait_for()
        await page.keyboard.press("k")
        await whole.wait_for()
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
            await answers.get_by_text(f"{count} {'disputed' if count > 1 else 'decided otherwise'}").wait_for()
            await answers.get_by_role("button", name="Reopen").click()
            await page.locator(".chip", has_text=told).first.wait_for()
            assert await page.locator(".chip", has_text=told).count() == count
            await page.keyboard.press("k")
            if count > 1:
                said = {first: "DOES_NOT_EXPLAIN", second: "DOES_NOT_EXPLAIN"}
                await at.people.adjudicate(run_id, lease.task.task_id, dict.fromkeys(said, 2), "lea")


async def test_an_earlier_answer_is_changed_in_the_view_in_which_it_was_given(bench: Any) -> None:
    async with bench(undo_s=0.0, max_grade=3.0) as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], k=4, max_depth=0)
        lease = (await at.people.lease("ann", run_id=run_id, hypothesis_id="tree-0"))[0]
        ids = [one.premise.id for one in lease.task.candidates]
        given = {ids[0]: 1, ids[1]: ABSTAINS, ids[2]: REFUSES}
        added = next(one for one in (f"p{n}" for n in range(20)) if one not in ids)
        await at.people.submit(
            lease, Answer(given, additions=[added], written=["not in the corpus"], note="first"), seen_upto=3
        )
        page = await at.window("ann", shows="hypothesis 1")
        holders = (await at.people.get_tree(run_id, "tree-1")).nodes[0].holders
        await reopened(page)
        await page.get_by_text("You are changing your answer of").wait_for()
        assert await page.get_by_role("tree").locator("[aria-current]").inner_text() != "", "its tree stands beside it"
        rows = page.get_by_role("list", name="Candidates").get_by_role("listitem")
        assert await rows.nth(0).get_by_role("button", name="Accept").get_attribute("aria-pressed") == "true"
        assert await rows.nth(1).locator(".chip").inner_text() == "abstained"
        assert await page.get_by_label("Note").input_value() == "first"
        assert await page.get_by_role("list", name="Added").get_by_role("listitem").count() == 2
        await press_keys(page, "4", "k")
        await shown(page, "hypothesis 1")
        assert (await at.people.get_tree(run_id, "tree-1")).nodes[0].holders == holders, "what was held stays held"
        await reopened(page)
        await read(page)  # the addition above them, too
        for key in ("1", "2", "l"):  # 4 is ticked since the first time
            await page.keyboard.press(key)
        await page.get_by_role("button", name="Remove what was added").click()
        await page.get_by_role("spinbutton", name="grade").last.fill("2")
        await page.get_by_label("Note").fill("")
        await page.keyboard.press("Control+Enter")
        await page.get_by_role("alert").get_by_text("can be replaced, not taken away").wait_for()
        await page.get_by_label("Note").fill("second")
        await page.get_by_role("button", name="Save the change").click()
        await page.get_by_text("Changed. Pairs and exports follow").wait_for()
        await shown(page, "hypothesis 1")
        [task] = [one async for one in at.people.list_tasks(run_id, answered_by="ann")]
        [answer] = task.answers
        said = {one.premise_id: (one.judgement.name, one.leaf, one.grade) for one in answer.verdicts}
        no = ("DOES_NOT_EXPLAIN", False, None)
        wanted = [no, ("EXPLAINS", True, None), no, ("EXPLAINS", False, 2.0)]
        assert [said[one] for one in ids] == wanted
        assert [(one.premise_id, one.judgement.name) for one in answer.additions] == [(added, "DOES_NOT_EXPLAIN")]
        assert (answer.note, answer.written) == ("second", ("not in the corpus",))


async def test_a_task_that_comes_late_waits_while_an_earlier_answer_is_open(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        lease = (await at.people.lease("ann", run_id=run_id))[0]
        await at.people.submit(lease, [])
        page = await at.window("ann")
        await page.get_by_text("Nothing waits for you").wait_for()
        release = await held(page, "**/api/lease")
        async with page.expect_request("**/api/lease"):
            await at.run(["hypothesis 1"], max_depth=0)
        await page.keyboard.press("o")
        await page.get_by_label("Run").select_option(run_id)
        await page.get_by_role("button", name="Reopen: hypothesis 0").click()
        await shown(page, "hypothesis 0")
        async with page.expect_response("**/api/lease"):
            release()
        await page.wait_for_timeout(300)
        await shown(page, "hypothesis 0")
        await page.keyboard.press("k")
        await shown(page, "hypothesis 1")


async def test_an_answer_that_comes_after_its_dialog_was_closed_opens_nothing(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        [lease] = await at.people.lease("ann", run_id=run_id, hypothesis_id="tree-0")
        await at.people.submit(lease, [lease.task.candidates[0].premise.id])
        page = await at.window("ann", shows="hypothesis 1")
        release = await held(page, "**/answers")
        await page.goto(f"{at.url}/#annotate/{run_id}/{lease.task.task_id}")
        await page.get_by_role("dialog", name="Your answers").wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("dialog", name="Your answers").wait_for(state="detached")
        async with page.expect_response("**/answers"):
            release()
        await page.wait_for_timeout(300)
        assert await page.get_by_text("You are changing").count() == 0
        await shown(page, "hypothesis 1")


async def test_a_change_of_an_earlier_answer_refuses_nothing_unseen_and_changes_nothing_by_itself(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        at.world.index.suffix = " and so on" * 40
        run_id = await at.run(["hypothesis 0"], k=30, max_depth=0)
        lease = (await at.people.lease("ann", run_id=run_id))[0]
        ids = [one.premise.id for one in lease.task.candidates]
        await at.people.submit(lease, [ids[0]], seen_upto=1)
        page = await at.window("ann")
        for key, told in (("", "Nothing was changed"), ("2", "Changed.")):
            await page.get_by_text("Nothing waits for you").wait_for()
            await reopened(page)
            await page.locator(".gutter.seen").nth(1).wait_for()  # a row unseen before is read now
            if key:
                await page.keyboard.press(key)
            await page.get_by_role("button", name="Save the change").click()
            await page.get_by_text(told).wait_for()
            await asyncio.sleep(0.5)  # the change's own event has the page look for a task
            assert await page.get_by_text(told).count() == 1, "it stays until another task opens"
        [task] = [one async for one in at.people.list_tasks(run_id, answered_by="ann")]
        said = [
            one.judgement.name for one in sorted(task.answers[0].verdicts, key=lambda one: ids.index(one.premise_id))
        ]
        assert said[:2] == ["EXPLAINS", "EXPLAINS"]
        assert said[-10:] == ["UNSEEN"] * 10


async def test_a_refused_row_stays_refused_with_its_time_in_sight_when_another_row_is_changed(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        at.world.index.suffix = " and so on" * 40
        run_id = await at.run(["hypothesis 0"], k=30, max_depth=0)
        [lease] = await at.people.lease("ann", run_id=run_id)
        ids = [one.premise.id for one in lease.task.candidates]
        given = {one: Verdict(REFUSES, in_sight_ms=1500) for one in ids} | {
            ids[0]: Verdict(EXPLAINS, in_sight_ms=1200),
            ids[2]: Verdict(UNSEEN, in_sight_ms=300),
            ids[-2]: Verdict(REFUSES, in_sight_ms=1700, remark=IRRELEVANT),
            ids[-1]: Verdict(UNSEEN),
        }
        await at.people.submit(lease, given)

        async def verdicts() -> dict[str, tuple[str, str, int]]:
            [task] = [one async for one in at.people.list_tasks(run_id, answered_by="ann")]
            return {
                one.premise_id: (one.judgement.name, one.remark.name, one.in_sight_ms)
                for one in task.answers[0].verdicts
            }

        before = await verdicts()
        assert [before[one][0] for one in ids].count("DOES_NOT_EXPLAIN") == 27
        page = await at.window("ann")
        await page.get_by_text("Nothing waits for you").wait_for()
        await reopened(page)
        await press_keys(page, "2", "ArrowDown")
        await page.locator(".gutter.seen").nth(28).wait_for()  # the third row, too, is in sight for a second now
        await page.get_by_role("button", name="Save the change").click()
        await page.get_by_text("Changed.").wait_for()
        after = await verdicts()
        assert {one: after[one] for one in (ids[0], *ids[3:])} == {one: before[one] for one in (ids[0], *ids[3:])}
        assert after[ids[1]][0] == "EXPLAINS"
        assert after[ids[2]][0] == "DOES_NOT_EXPLAIN"
        assert after[ids[1]][2] > 1500
        assert after[ids[2]][2] >= 1000, "what its author has read by now is refused with the time of both"


async def test_what_was_accepted_or_added_at_a_glance_and_is_taken_away_later_is_not_refused(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        at.world.index.suffix = " and so on" * 40
        run_id = await at.run(["hypothesis 0"], k=30, max_depth=0)
        [lease] = await at.people.lease("ann", run_id=run_id)
        first, *others, glanced, last = [one.premise.id for one in lease.task.candidates]
        added = next(one for one in (f"p{n}" for n in range(60)) if one not in (first, *others, glanced, last))
        accepted = {first: Verdict(EXPLAINS, in_sight_ms=1200), glanced: Verdict(EXPLAINS, in_sight_ms=300)}
        await at.people.submit(lease, Answer(accepted | {last: Verdict(ABSTAINS)}, additions=[added]))
        page = await at.window("ann")
        await page.get_by_text("Nothing waits for you").wait_for()
        await page.evaluate("window.requestAnimationFrame = () => 0")  # nothing is in sight before a frame
        await reopened(page)
        await page.get_by_role("button", name="Remove what was added").click()
        rows = page.get_by_role("list", name="Candidates").get_by_role("listitem")
        await rows.nth(28).get_by_role("button", name="Accept").click()
        await page.keyboard.press("Control+Enter")
        await page.get_by_text("Changed.").wait_for()
        [task] = [one async for one in at.people.list_tasks(run_id, answered_by="ann")]
        said = (*task.answers[0].verdicts, *task.answers[0].additions)
        assert [{one.premise_id: one.judgement.name for one in said}[name] for name in (glanced, added)] == [
            "UNSEEN"
        ] * 2


async def test_a_run_over_other_texts_under_the_same_ids_begins_unread(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        run_id = await at.run(["hypothesis 0"], k=4, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.locator(".gutter.seen").nth(3).wait_for()
        await at.sampler.cancel(run_id)
        at.world.index.suffix = " other"
        await at.run(["hypothesis 0"], k=4, max_depth=0)
        await page.keyboard.press("k")
        await page.locator(ROWS).first.filter(has_text="other").wait_for()
        assert await page.locator(".gutter.seen").count() == 0


async def test_undo_takes_back_only_what_was_answered_last_in_whichever_tab(bench: Any) -> None:
    async with bench(undo_s=20.0) as at:
        run_id = await at.run([f"hypothesis {n}" for n in range(3)], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await submitted(page, "1")
        await shown(page, "hypothesis 1")
        other = await page.context.new_page()
        await other.goto(page.url)
        await shown(other, "hypothesis 1")
        await submitted(other, "1")
        await shown(other, "hypothesis 2")
        await page.keyboard.press("u")
        await page.get_by_text("nothing to undo").wait_for()
        tasks = [one async for one in at.people.list_tasks(run_id)]
        assert sorted(len(one.answers) for one in tasks) == [0, 1, 1]


async def test_a_second_press_on_save_does_not_answer_the_task_that_was_held(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await submitted(page, "1")
        await shown(page, "hypothesis 1")
        await page.keyboard.press("1")
        await reopened(page)
        await page.keyboard.press("2")
        await page.wait_for_timeout(1100)
        await page.keyboard.press("Control+Enter")
        await page.get_by_text("Changed.").wait_for()
        await page.keyboard.press("Control+Enter")
        await page.wait_for_timeout(500)
        await shown(page, "hypothesis 1")
        tasks = [one async for one in at.people.list_tasks(run_id)]
        assert sorted(len(one.answers) for one in tasks) == [0, 1]


async def test_a_run_that_has_ended_holds_nobody(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await at.run(["hypothesis 1"], max_depth=0)
        await page.keyboard.press("1")
        await at.sampler.cancel(run_id)
        await page.keyboard.press("Control+Enter")
        await shown(page, "hypothesis 1")
        await page.get_by_role("alert").get_by_text("This run has ended and takes no answer any more").wait_for()


def test_the_practice_tree_is_a_gold_tree_of_the_sample() -> None:
    nodes = {one["text"]: one for one in json.loads(PRACTICE.read_text(encoding="utf-8"))}
    gold = {query.text: query.gold for query in Dataset.load(ROOT / "data" / "sample").queries("train")}
    assert all(sorted(one["accepted"]) == sorted(gold[text]) for text, one in nodes.items())
    [root, *below] = nodes
    assert set(below) == set(gold[root]) & gold.keys()
    for name, one in nodes.items():
        assert set(one["accepted"]) <= set(one["why"]) <= set(one["candidates"])
        assert name not in one["candidates"]
        assert len(set(one["candidates"])) == len(one["candidates"])


@needs_axe
async def test_a_newcomer_practises_on_a_gold_tree_and_nothing_is_recorded(bench: Any) -> None:
    root, eats, dark = json.loads(PRACTICE.read_text(encoding="utf-8"))
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"])
        page = await at.window("ann")
        sent: list[str] = []
        page.on("request", lambda asked: sent.append(asked.url) if asked.method == "POST" else None)
        await shown(page, "hypothesis 0")
        await page.get_by_role("link", name="Practise").click()
        await page.get_by_text("Nothing that you do here is recorded").wait_for()
        sent.clear()
        gold = page.get_by_role("dialog", name="What the gold tree says")
        for node, accepted, told in (
            (root, root["accepted"], "You and the gold tree agree."),
            (
                eats,
                [eats["accepted"][0], eats["candidates"][2]],
                "You found 1 of the 2 that explain it, and accepted 1",
            ),
            (dark, dark["accepted"], "You and the gold tree agree."),
        ):
            await shown(page, node["text"])
            await read(page, len(node["candidates"]))
            for text in accepted:
                await page.keyboard.press(str(node["candidates"].index(text) + 1))
            await page.keyboard.press("Control+Enter")
            await gold.get_by_text(told).wait_for()
            for text in (*node["accepted"], *accepted):
                await gold.get_by_role("listitem").filter(has_text=text).filter(has_text=node["why"][text]).wait_for()
            wrong = gold.get_by_role("listitem").filter(has_text="not needed; you: accepted")
            assert await wrong.count() == len(set(accepted) - set(node["accepted"]))
            assert not await findings(page)
            await press_keys(page, "1", "Escape")
            await gold.wait_for(state="detached")
        whole = page.get_by_role("region", name="Finished tree")
        drawn = await whole.get_by_role("treeitem").locator(".text").all_inner_texts()
        assert sorted(drawn) == sorted({root["text"], *root["accepted"], *eats["accepted"], *dark["accepted"]})
        await whole.get_by_role("button", name=eats["accepted"][1]).click()
        await gold.get_by_role("listitem").filter(has_text=eats["accepted"][1]).get_by_text("you: refused").wait_for()
        await page.keyboard.press("Escape")
        assert sent == []
        await page.keyboard.press("k")
        await shown(page, "hypothesis 0")
        assert [one.answers async for one in at.people.list_tasks(run_id)] == [()]


async def test_what_is_added_in_practice_counts_and_is_neither_a_candidate_nor_what_is_to_be_explained(
    bench: Any,
) -> None:
    root = json.loads(PRACTICE.read_text(encoding="utf-8"))[0]
    async with bench() as at:
        page = await at.window("ann")
        await page.get_by_role("link", name="Practice").click()
        await shown(page, root["text"])
        await read(page, len(root["candidates"]))
        await page.keyboard.press("/")
        await page.get_by_role("button", name="Search", exact=True).click()
        hits = page.locator(".hits li")
        await hits.first.wait_for()
        found = {text.partition("\n")[2].strip() or text for text in await hits.all_inner_texts()}
        assert not found & {root["text"], *root["candidates"]}
        await hits.first.get_by_role("button", name="Add").click()
        await press_keys(page, "Escape", "Control+Enter")
        gold = page.get_by_role("dialog", name="What the gold tree says")
        await gold.get_by_text("and accepted 1 that does not").wait_for()


async def test_an_answer_in_practice_is_taken_back_and_the_tree_begins_anew_with_the_page(bench: Any) -> None:
    root, eats, _ = json.loads(PRACTICE.read_text(encoding="utf-8"))
    async with bench() as at:
        page = await at.window("ann")
        await page.get_by_role("link", name="Practice").click()
        ticked = page.locator('.tick[aria-pressed="true"]')
        for ticks, again in ((0, "u"), (1, "reload")):
            await shown(page, root["text"])
            assert await ticked.count() == ticks, "an answer that was taken back is there to be changed"
            await press_keys(page, "25"[ticks], "Control+Enter")
            await page.get_by_role("button", name="Go on").click()
            await shown(page, eats["text"])
            await (page.reload() if again == "reload" else page.keyboard.press(again))
        await shown(page, root["text"])
        assert await ticked.count() == 0
