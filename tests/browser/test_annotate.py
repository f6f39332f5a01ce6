"""People build trees in a real browser: by keys alone, by mouse alone, together, and through failures."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import press_keys, shown, submitted
from browser.test_sight import held

from aeenc import values
from aeenc.oracle import Answer
from support.waiting import eventually
from support.worlds.sampler_world import nearest, tasks

pytestmark = pytest.mark.browser
# Sends a body as the page would; gives the status.
POST = """async ([path, body]) => {
    const { csrf } = await (await fetch("/api/me")).json();
    const headers = { "content-type": "application/json", "x-csrf-token": csrf };
    return (await fetch(path, { method: "POST", headers, body: JSON.stringify(body) })).status;
}"""


async def choose(page: Any, text: str) -> None:
    """Says that a candidate explains the query."""
    candidates = page.get_by_role("list", name="Candidates").get_by_role("listitem")
    await candidates.filter(has_text=text).get_by_role("button", name="Accept").click()


async def read(page: Any, rows: int = 4) -> None:
    """Waits until so many candidates were in sight long enough."""
    await page.locator(".gutter.seen").nth(rows - 1).wait_for()


async def answered(page: Any, query: str, *keys: str) -> None:
    """Answers the task that asks this, and lets the run go on with it."""
    await shown(page, query)
    await read(page)
    await press_keys(page, *keys, "Control+Enter")
    await page.get_by_text(f"Submitted: “{query}”").wait_for()
    await page.keyboard.press("g")


async def not_explainable(page: Any, rows: int = 4) -> None:
    """Says that nothing explains the query, so that an answer may accept nothing."""
    await read(page, rows)
    await page.get_by_label("This node is").select_option("not_explainable")


async def judged(bench: Any, run_id: str, tree: str = "tree-0") -> values.TreeState:
    return await bench.people.get_tree(run_id, tree)


async def test_a_tree_is_built_by_keys_alone(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"])
        page = await at.window("ann", shows="hypothesis 0")
        await read(page)
        await press_keys(page, "1", "ArrowDown", "r", "n")
        await page.keyboard.type("a note")
        await press_keys(page, "Escape", "Control+Enter")
        await page.get_by_text("Submitted: “hypothesis 0”").wait_for()
        await page.keyboard.press("g")
        first = (await judged(at, run_id)).nodes[0].accepted[0].text
        await shown(page, first)
        assert await page.get_by_role("treeitem", selected=True).first.inner_text() != ""
        await answered(page, first, "2", "l")
        await asyncio.wait_for(at.sampler.wait(run_id), 30)
        tree = await judged(at, run_id)
        assert [node.state for node in tree.nodes] == [values.TaskState.SETTLED] * 2
        root, below = [task async for task in at.people.list_tasks(run_id)]
        assert root.answers[0].note == "a note"
        assert [one.judgement.name for one in root.answers[0].verdicts] == [
            "EXPLAINS",
            "DOES_NOT_EXPLAIN",
            "DOES_NOT_EXPLAIN",
            "DOES_NOT_EXPLAIN",
        ]
        assert [one.leaf for one in below.answers[0].verdicts] == [False, True, False, False]


async def test_a_tree_is_built_by_mouse_alone(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        third = page.get_by_role("button", name="Accept candidate 3")
        await third.click()
        assert await third.get_attribute("aria-pressed") == "true"
        await page.get_by_role("button", name="Search").first.click()
        await page.get_by_role("button", name="Search", exact=True).first.click()
        found = page.get_by_role("region", name="Search the corpus")
        await found.get_by_role("button", name="Add", exact=True).first.click()
        await page.get_by_role("list", name="Added").wait_for()
        await page.get_by_role("button", name="Submit").click()
        await page.get_by_role("button", name="Go on now").click()
        await asyncio.wait_for(at.sampler.wait(run_id), 30)
        [task] = await tasks(at.people, run_id)
        [answer] = task.answers
        assert [one.judgement.name for one in answer.verdicts].count("EXPLAINS") == 1
        assert len(answer.additions) == 1


async def test_a_written_intermediate_becomes_a_node_with_candidates_of_its_own(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"])
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("/")
        await page.keyboard.type("what follows on the way")
        await page.get_by_role("button", name="Write as an intermediate conclusion").press("Enter")
        await page.get_by_role("list", name="Added").get_by_text("what follows on the way").wait_for()
        await page.reload()
        await page.get_by_role("list", name="Added").get_by_text("what follows on the way").wait_for()
        await page.keyboard.press("Control+Enter")
        await page.get_by_role("tree").get_by_text("written by ann").wait_for()
        await page.keyboard.press("g")
        await shown(page, "what follows on the way")
        await press_keys(page, "1", "Control+Enter")
        await page.get_by_text("Submitted: “what follows on the way”").wait_for()
        await page.keyboard.press("g")
        await asyncio.wait_for(at.sampler.wait(run_id), 30)
        _, below = (await judged(at, run_id)).nodes
        assert (below.premise_id, below.author, len(below.accepted)) == ("", "ann", 1)
        [(_, record)] = [one async for one in at.sampler.export_trees(run_id)]
        assert "int1: what follows on the way" in record


async def test_a_judged_node_is_reopened_by_its_author_alone_and_the_rest_stays(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=1)
        page = await at.window("ann")
        await answered(page, "hypothesis 0", "1")
        await page.get_by_text("The run goes on.").wait_for()
        await page.keyboard.press("o")
        await page.get_by_role("button", name="Reopen: hypothesis 0").press("Enter")
        await page.get_by_text("You are changing your answer").wait_for()
        await press_keys(page, "2", "/", *"so it is")
        await page.get_by_role("button", name="Write as an intermediate conclusion").press("Enter")
        await page.keyboard.press("Control+Enter")
        await page.get_by_text("Changed. Pairs and exports follow").wait_for()
        [answer] = [one async for task in at.people.list_tasks(run_id) for one in task.answers]
        said = [one.judgement.name for one in answer.verdicts]
        assert said == ["EXPLAINS", "EXPLAINS", "DOES_NOT_EXPLAIN", "DOES_NOT_EXPLAIN"]

        async def grown() -> bool:
            root, *below = (await judged(at, run_id)).nodes
            return (len(root.accepted), len(below)) == (3, 3) and "so it is" in {node.text for node in below}

        await eventually(grown)
        other = await at.window("bob")
        words = {"run": run_id, "answer": answer.answer_id, "verdicts": {answer.verdicts[0].premise_id: "refuses"}}
        assert await other.evaluate(POST, ["/api/amend", words]) == 403
        admin = await at.window("root", "admin")  # may do what an adjudicator may
        assert await admin.evaluate(POST, ["/api/amend", words]) == 200


async def test_what_was_ticked_survives_a_reload_and_an_answer_can_be_taken_back(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("2")
        release = await held(page, "**/tree?hypothesis=tree-0")
        await page.reload()
        await shown(page, "hypothesis 0")
        pressed = page.get_by_role("button", name="Accept candidate 2")
        assert await pressed.get_attribute("aria-pressed") == "true"
        async with page.expect_response("**/api/answer"):
            await page.keyboard.press("Control+Enter")
        release()  # the tree was not drawn yet: its person stays in it all the same
        await page.get_by_text("This tree grows as soon as your answer is final").wait_for()
        announced = await page.get_by_role("status").all_inner_texts()
        await page.wait_for_timeout(1500)
        assert await page.get_by_role("status").all_inner_texts() == announced, "the countdown is read out each second"
        await page.keyboard.press("k")
        await shown(page, "hypothesis 1")
        await page.keyboard.press("u")
        await shown(page, "hypothesis 0")
        assert await pressed.get_attribute("aria-pressed") == "true"
        assert not any([task.answers async for task in at.people.list_tasks(run_id)])


async def test_a_key_acts_once_and_only_on_what_is_in_sight(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann")

        async def answers() -> list[int]:
            return [len(task.answers) async for task in at.people.list_tasks(run_id)]

        await shown(page, "hypothesis 0")
        await not_explainable(page)
        await page.keyboard.down("Control")
        await page.keyboard.down("Enter")
        await shown(page, "hypothesis 1")
        await page.keyboard.down("Enter")  # held down: it repeats
        await page.keyboard.up("Control")
        await page.wait_for_timeout(300)
        assert await answers() == [1, 0]
        await page.keyboard.press("o")
        await page.get_by_role("button", name="Reopen: hypothesis 0").wait_for()
        await press_keys(page, "1", "Control+Enter", "Escape")
        await page.wait_for_timeout(300)
        assert await page.locator(".candidates [aria-pressed=true]").count() == 0
        assert await answers() == [1, 0]
        await not_explainable(page)
        await page.keyboard.press("Control+Enter")
        await page.get_by_text("Submitted: “hypothesis 1”").wait_for()
        sent = []

        async def late(route: Any) -> None:
            sent.append(route.request.url)
            await asyncio.sleep(0.5)
            await route.continue_()

        await page.route("**/api/undo", late)
        await page.get_by_role("button", name="Undo").wait_for()
        await press_keys(page, "u", "u")
        await shown(page, "hypothesis 1")
        assert (len(sent), await answers()) == (1, [1, 0])


async def test_nothing_below_the_line_counts_as_read(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], k=12, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await read(page, 6)
        await press_keys(page, "ArrowDown", "ArrowDown", "s")
        await page.get_by_text("9 of 12 not seen").wait_for()
        await not_explainable(page, 3)
        await page.keyboard.press("Control+Enter")
        await page.get_by_text("with 9 not seen").wait_for()
        [task] = [one async for one in at.people.list_tasks(run_id)]
        assert [one.judgement.name for one in task.answers[0].verdicts] == ["DOES_NOT_EXPLAIN"] * 3 + ["UNSEEN"] * 9


async def test_two_people_disagree_and_a_third_decides(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        for name, key in (("ann", "1"), ("bob", "2")):
            page = await at.window(name, shows="hypothesis 0")
            await read(page)
            await submitted(page, key)
        late, lead = [await at.window(name, "adjudicator") for name in ("late", "lead")]
        for window in (late, lead):
            await window.get_by_role("link", name="Lead").click()
            conflict = window.get_by_role("region", name="Disputed: hypothesis 0")
            await conflict.get_by_role("button", name="Decide").wait_for()
        people = lead.get_by_role("region", name="People")
        await people.get_by_text("bob 0 %").wait_for()
        titles = await people.get_by_role("columnheader").all_inner_texts()
        rows = [await row.locator("td").all_inner_texts() for row in await people.get_by_role("row").all()][1:]
        said = [dict(zip(titles, row, strict=True)) for row in rows]
        assert [(one["Person"], one["Refused"], one["Agrees with"]) for one in said] == [
            ("ann", "75 %", "bob 0 %"),
            ("bob", "75 %", "ann 0 %"),
        ]
        assert all(float(one["Seconds, median"]) >= 1 for one in said)
        groups = conflict.get_by_role("group")
        await groups.nth(0).get_by_role("button", name="Accept").click()
        await groups.nth(1).get_by_role("button", name="Refuse").click()
        await conflict.get_by_role("button", name="Decide").click()
        for window in (late, lead):
            await window.get_by_text("Nobody disagrees.").wait_for()
        [task] = [one async for one in at.people.list_tasks(run_id)]
        assert (task.decision.annotator, len(task.conflicts)) == ("lead", 0)
        again = {"run": run_id, "task": task.task.task_id, "verdicts": {task.task.candidates[0].premise.id: "refuses"}}
        assert await late.evaluate(POST, ["/api/adjudicate", again]) == 409, "a decision is replaced unseen"
        assert await lead.evaluate(POST, ["/api/adjudicate", again]) == 200, "one's own decision can be changed"
        await page.goto(f"{at.url}/#lead")
        await page.reload()
        assert await page.get_by_role("link", name="Lead").count() == 0


async def test_people_qualify_first_and_a_lead_sees_what_they_got_wrong(bench: Any, tmp_path: Path) -> None:
    file = tmp_path / "controls.jsonl"
    items = [
        {"query": f"what is {name}", "explains": [f"{name} is a metal"], "refuses": ["ice is cold"]}
        for name in ("iron", "tin")
    ]
    file.write_text("\n".join(map(json.dumps, items)))
    async with bench(overlap=2, controls=str(file), control_share=0.0, qualify=2) as at:
        await at.run(["hypothesis 0"], max_depth=0)
        for name, choice in (("ann", "is a metal"), ("bob", "ice is cold")):
            page = await at.window(name)
            for number in (0, 1):
                await page.get_by_text(f"You qualify for team: {number} of 2 tasks answered.").wait_for()
                await page.get_by_role("heading", name="what is").wait_for()
                await read(page, 2)
                await choose(page, choice)
                await page.keyboard.press("Control+Enter")
            if name == "ann":
                await shown(page, "hypothesis 0")
                await page.get_by_text("You qualify").wait_for(state="hidden")
        await page.get_by_role("alert").get_by_text("has not passed the qualification round").wait_for()
        lead = await at.window("lead", "adjudicator")
        await lead.get_by_role("link", name="Lead").click()
        await lead.get_by_role("heading", name="Control items").wait_for()
        assert await lead.get_by_text("refused; otherwise said: 1").count() == 2


async def test_a_sampler_that_is_restarted_loses_no_answer(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.keyboard.press("1")
        restarting = asyncio.create_task(at.restart_sampler())
        await page.keyboard.press("Control+Enter")
        await restarting
        await page.get_by_text("Submitted").wait_for(timeout=40_000)
        await eventually(
            lambda: tasks(at.people, run_id), is_so=lambda found: [len(one.answers) for one in found] == [1]
        )


async def test_a_new_task_appears_by_itself_after_a_refused_stream_and_takes_keys(bench: Any) -> None:
    async with bench() as at:
        page = await at.window("ann")
        await page.get_by_text("Nothing waits for you").wait_for()
        await page.route("**/api/events", lambda route: route.fulfill(status=503), times=1)
        async with page.expect_response(lambda answer: answer.status == 503):
            await page.reload()
        await page.get_by_text("Nothing waits for you").wait_for()
        await page.keyboard.press("/")  # there is nothing to search for yet
        await at.run(["hypothesis 5"], max_depth=0)
        await shown(page, "hypothesis 5")
        await page.keyboard.press("1")
        assert await page.locator(".candidates [aria-pressed=true]").all_inner_texts() == ["1"]


async def test_a_node_that_is_open_is_ranked_again_by_a_new_encoder(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 1"], k=8, max_depth=0)
        page = await at.window("ann", shows="hypothesis 1")
        [before] = [task.task async for task in at.people.list_tasks(run_id)]
        after = [premise_id for premise_id, _, _ in nearest("hypothesis 1", 8, version="version-2")]
        kept = next(n for n, one in enumerate(before.candidates, 1) if one.premise.id in after)
        await press_keys(page, str(kept), "n")
        await page.keyboard.type("my note")
        await page.keyboard.press("Escape")
        at.world.index.stable = "version-2"
        await page.get_by_text("A newer encoder was published").wait_for()
        await page.keyboard.press("e")
        await page.get_by_text("new", exact=True).first.wait_for()
        [now] = [task.task async for task in at.people.list_tasks(run_id, state="waiting")]
        assert [one.premise.id for one in now.candidates] == after
        await page.keyboard.press("Control+Enter")
        await page.get_by_text("Submitted: “hypothesis 1”").wait_for()
        [task] = [one async for one in at.people.list_tasks(run_id) if one.answers]
        accepted = [one.premise_id for one in task.answers[0].verdicts if one.judgement.name == "EXPLAINS"]
        assert accepted == [before.candidates[kept - 1].premise.id]
        assert (task.answers[0].note, task.task.model_version) == ("my note", "version-2")


async def test_remarks_and_grades_are_kept_and_the_question_is_in_sight(bench: Any) -> None:
    async with bench(max_grade=3.0) as at:
        roots = [("tree-0", "hypothesis 0", "What floats?", "ice")]
        run = await at.sampler.start_run(roots, corpus="science", oracle="team", k=4, max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await page.get_by_text("What floats?").wait_for()
        await read(page)
        await press_keys(page, "1", "ArrowDown", "i", "b")
        await page.get_by_role("spinbutton", name="grade").fill("2.5")
        await press_keys(page, "Escape", "4")
        for text in ("1", ""):
            await page.get_by_role("spinbutton", name="grade").nth(1).fill(text)
        marked = page.locator(".chip")
        assert await marked.all_inner_texts() == ["irrelevant", "bad fact"]
        await page.reload()
        await shown(page, "hypothesis 0")
        assert await marked.count() == 2
        await submitted(page)
        [task] = [one async for one in at.people.list_tasks(run.id)]
        said = [(one.judgement.name, one.remark.name, one.grade) for one in task.answers[0].verdicts]
        assert said == [
            ("EXPLAINS", "UNSPECIFIED", 2.5),
            ("DOES_NOT_EXPLAIN", "IRRELEVANT", None),
            ("ABSTAIN", "BAD_FACT", None),
            ("EXPLAINS", "UNSPECIFIED", None),
        ]


async def test_a_lead_reads_the_trail_and_takes_files_away(bench: Any) -> None:
    async with bench(undo_s=0.0) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        lease = (await at.people.lease("ann"))[0]
        await at.people.submit(lease, Answer([lease.task.candidates[0].premise.id], note="because"))
        await asyncio.wait_for(at.sampler.wait(run_id), 30)
        other = await at.run(["hypothesis 1", "hypothesis 2", "hypothesis 3"], max_depth=0)
        page = await at.window("lead", "adjudicator")
        await shown(page, "hypothesis 1")  # whoever leaves while a task is on its way gives it back
        await page.get_by_role("link", name="Lead").click()
        await page.get_by_text("Nothing yet.").wait_for()
        taken = await page.evaluate(
            """async ([run, tree]) => {
                const read = async (path) => {
                    const answer = await fetch(path);
                    return [answer.status, answer.headers.get("content-type"), await answer.text()];
                };
                const found = { svg: await read(`/api/runs/${run}/tree.svg?hypothesis=${tree}`) };
                for (const form of ["trees", "pairs", "triplets", "none"])
                    found[form] = await read(`/api/runs/${run}/download/${form}`);
                return found;
            }""",
            [run_id, "tree-0"],
        )
        assert [taken[form][0] for form in ("trees", "pairs", "triplets", "svg", "none")] == [200, 200, 200, 200, 404]
        assert len(taken["pairs"][2].splitlines()) == 4
        assert len(taken["triplets"][2].splitlines()) == 3
        assert "hypothesis 0" in taken["trees"][2]
        assert taken["svg"][1].startswith("image/svg+xml")
        [again] = await at.people.lease("bob", run_id=other)
        await at.people.release(again.lease_id, "lunch")
        await page.reload()
        await page.get_by_role("link", name="Lead").click()
        trail = page.get_by_role("region", name="Changes, the latest first")
        await trail.get_by_text("lunch").wait_for()
        assert await trail.get_by_text("bob").is_visible()
        assert await trail.get_by_role("cell", name=again.task.query).is_visible()
        assert again.task.task_id not in await trail.inner_text(), "people know a task by its sentence"
        assert await trail.get_by_text("gave it back").is_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await trail.get_by_role("link", name=again.task.query).first.click()
        await page.get_by_text("Nobody's answer to that node").wait_for()
        assert asked
        assert not [url for url in asked if url.endswith("/api/lease")], "who looks takes no task"
        await page.goto(f"{at.url}/#lead")
        ended = page.get_by_role("row").filter(has=page.get_by_title(run_id))
        assert await ended.get_by_role("link", name="trees").is_visible()
        assert await ended.get_by_text("succeeded").is_visible()
        await page.get_by_label("Run").select_option(run_id)
        await trail.get_by_text("because").wait_for()
        for lease in sorted(await at.people.lease("bob", run_id=other, max_tasks=2), key=lambda one: one.task.query):
            await at.people.submit(lease, [])
        await page.get_by_role("link", name="Annotate").click()
        await shown(page, "hypothesis 1")
        ann = await at.window("ann")  # only now: she would take that task
        await ann.get_by_text("Nothing waits for you").wait_for()
        for window, listed in ((page, "hypothesis 3 bob hypothesis 2 bob"), (ann, "")):
            await window.keyboard.press("o")
            answers = window.get_by_role("region", name="Answers")
            if listed:
                await answers.get_by_role("button", name="Reopen").nth(1).wait_for()
                texts = await answers.get_by_role("listitem").all_inner_texts()
                assert " ".join(text.split(",")[0] for text in texts).split() == listed.split()
            await answers.get_by_label("Run").select_option(run_id)
            await answers.get_by_role("listitem").filter(has_text="hypothesis 0").wait_for()
        refused = await ann.evaluate("async (run) => (await fetch(`/api/runs/${run}/changes`)).status", run_id)
        assert refused == 403
