"""Every view with sentences that people would judge; the pictures of docs/workbench.md are made here.

And a newcomer's way through a gold tree of the sample, by what stands in sight alone.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import press_keys, submitted

from aeenc.trees import Dataset
from aeenc.v1 import index_pb2, types_pb2
from support.worlds.sampler_world import FakeIndex

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
SAMPLE = ROOT / "data" / "sample"
FACTS = SAMPLE / "supporting_data" / "worldtree_corpus_sentences_extended.json"
# What a newcomer does or needs to know on the way through a tree, and the words in sight that name it.
STEPS = {
    "what is asked": "Which of these explain",
    "learn the rules": "Read the guideline first",
    "try it first": "Practise on a tree",
    "leave the rules": "Close",
    "find keys again": "Guideline and keys",
    "what was read": "✓ read",
    "how many are left": "seen",
    "accept a fact": "A number accepts its sentence",
    "choose another fact": "A click on a sentence frames it",
    "say of it that it needs no explanation": "Leaf",
    "say that it does not belong here": "Irrelevant",
    "say that one cannot tell": "Abstain",
    "say that a fact is wrong": "Bad fact",
    "look for a fact that is missing": "Search",
    "state a fact of one's own": "Write as an intermediate conclusion",
    "say how it follows": "Because",
    "say that a premise is missing": "This node is",
    "give the task back": "Skip",
    "begin the answer anew": "Clear",
    "send the answer": "Submit Ctrl",
    "what became of it": "Submitted:",
    "that the tree will grow": "This tree grows as soon as your answer is final",
    "take it back": "Undo",
    "let the tree grow at once": "Go on now",
    "change an earlier answer": "Reopen an answer",
    "that the tree is finished": "This tree is finished",
    "take the next tree": "Next tree",
    "say that nothing explains it": "Nothing explains it",
    "end": "Sign out",
}
# Whether a text is in the window, and nothing covers it.
IN_SIGHT = """(words) => [...document.querySelectorAll("body *")].some((one) => {
    const says = (element) => element.innerText?.includes(words);
    if (!says(one) || [...one.children].some(says)) return false;
    const box = one.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return box.width > 0 && top !== null && (one.contains(top) || top.contains(one));
})"""


class SampleIndex(FakeIndex):
    """Finds the sentences of the sample that share most words with a query, and its gold."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, str] = json.loads(FACTS.read_text(encoding="utf-8"))
        self.gold = {query.text: query.gold for query in Dataset.load(SAMPLE).queries("train")}
        concluded = self.gold.keys() - set(self.facts.values())
        self.facts |= {f"int{n}": text for n, text in enumerate(sorted(concluded))}

    async def Retrieve(self, request: Any, context: Any) -> index_pb2.RetrieveResponse:
        answer = index_pb2.RetrieveResponse(model_version=self.stable, generation=self.active)
        for text in request.texts:
            wanted = words(text)
            left = {key: fact for key, fact in self.facts.items() if key not in request.exclude_ids and fact != text}
            scores = {
                key: 1.0 if fact in self.gold.get(text, ()) else len(wanted & words(fact)) / len(wanted | words(fact))
                for key, fact in left.items()
            }
            best = sorted(scores, key=lambda key: (-scores[key], key))[: request.k]
            found = [types_pb2.RankedPremise(premise={"id": key, "text": left[key]}, score=scores[key]) for key in best]
            answer.results.append(index_pb2.RetrievedPremises(premises=found))
        return answer

    async def GetPremises(self, request: Any, context: Any) -> index_pb2.GetPremisesResponse:
        found = [types_pb2.Premise(id=key, text=self.facts[key]) for key in request.ids]
        return index_pb2.GetPremisesResponse(premises=found, generation=request.generation)


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower()))


async def picture(page: Any, name: str) -> None:
    """Takes a picture of the window; keeps it in docs where that is asked for."""
    await page.wait_for_timeout(300)
    taken = await page.screenshot()
    assert len(taken) > 20_000, "an empty window"
    if os.environ.get("AEENC_WRITE_SCREENSHOTS"):
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / f"workbench-{name}.png").write_bytes(taken)


async def test_every_view_shows_what_people_judge(bench: Any) -> None:
    async with bench(SampleIndex(), overlap=2, policy="adjudicate") as at:
        await at.run(["a mirror reflects the light from a face", "an umbrella casts a shadow on a sunny day"], k=9)
        page = await at.window("ann", shows="mirror")
        await page.locator(".gutter.seen").nth(8).wait_for()
        await press_keys(page, "1", "ArrowDown", "x", "3")
        assert await page.locator(".tree .growing").count() == 2
        await picture(page, "annotate")
        await page.keyboard.press("/")
        await page.keyboard.type("light")
        assert (
            await page.get_by_role("region", name="Search the corpus").get_by_role("textbox").input_value() == "light"
        )
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Add", exact=True).first.click()
        await picture(page, "search")
        await page.get_by_role("button", name="Submit").click()
        await page.get_by_text("Submitted").wait_for()
        other = await at.window("bob", shows="mirror")
        await other.locator(".gutter.seen").nth(5).wait_for()
        await submitted(other, "1", "2")
        lead = await at.window("lead", "adjudicator")
        await lead.get_by_role("link", name="Lead").click()
        await lead.get_by_role("button", name="Decide").wait_for()
        await lead.get_by_role("group").first.get_by_role("button", name="Accept").click()
        await picture(lead, "lead")


class Newcomer:
    """Somebody who clicks what is named, and has to guess a step that no words in sight name."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.guessed: list[str] = []
        self.done: set[str] = set()

    async def sees(self, *steps: str) -> Any:
        """What names the last of the steps."""
        for step in steps:
            found = self.page.get_by_text(re.compile(STEPS[step])).locator("visible=true").first
            await found.wait_for()
            if not await self.page.evaluate(IN_SIGHT, STEPS[step]):
                self.guessed.append(step)
            self.done.add(step)
        return found

    async def follows(self, step: str) -> None:
        """Clicks what names a step."""
        await (await self.sees(step)).click()

    async def reads(self, query: str) -> None:
        """Reads the candidates of the task that asks this."""
        await self.page.get_by_role("heading", level=1).filter(has_text=query).wait_for()
        await self.page.locator(".gutter.seen").nth(5).wait_for()

    async def accepts(self, text: str, *, leaf: bool) -> None:
        """Says of a candidate that it explains the query."""
        row = self.page.get_by_role("list", name="Candidates").get_by_role("listitem").filter(has_text=text)
        if not leaf:
            await row.get_by_role("button", name="Accept").click()
            return
        await row.locator(".text").click()
        await self.follows("say of it that it needs no explanation")


async def test_a_newcomer_guesses_no_step_on_the_way_through_a_gold_tree(bench: Any) -> None:
    index = SampleIndex()
    path = ["opening the switch turns off the bulb"]
    while below := [text for text in index.gold[path[-1]] if text in index.gold]:
        path += below
    assert len(path) == 3
    async with bench(index) as at:
        run_id = await at.run(path[:1], k=9, max_depth=2)
        await at.run(["a robin sings on a roof"], k=9, max_depth=0)
        page = await at.window("ann")
        ann = Newcomer(page)
        await ann.reads(path[0])
        await ann.sees("what is asked", "try it first")
        await ann.follows("learn the rules")
        await ann.follows("leave the rules")
        await ann.sees("what was read", "how many are left", "accept a fact", "choose another fact", "find keys again")
        await ann.sees("say that it does not belong here", "say that one cannot tell", "say that a fact is wrong")
        await ann.sees("give the task back", "begin the answer anew")
        await ann.follows("look for a fact that is missing")
        await ann.sees("state a fact of one's own")
        await page.keyboard.press("Escape")
        await page.mouse.move(900, 400)
        await page.mouse.wheel(0, 3000)
        await ann.sees("say how it follows", "say that a premise is missing")
        for node in path:
            await ann.reads(node)
            for text in index.gold[node]:
                await ann.accepts(text, leaf=text not in index.gold)
            await ann.follows("send the answer")
            if node != path[-1]:
                await ann.sees(
                    "what became of it", "that the tree will grow", "take it back", "change an earlier answer"
                )
                await ann.follows("let the tree grow at once")
        await ann.sees("that the tree is finished")
        tree = await at.people.get_tree(run_id, "tree-0")
        assert {one.text: {premise.text for premise in one.accepted} for one in tree.nodes} == {
            text: set(index.gold[text]) for text in path
        }
        await ann.follows("take the next tree")
        await ann.reads("robin")
        await ann.follows("send the answer")
        await page.wait_for_timeout(1100)  # it takes no press before
        await ann.follows("say that nothing explains it")
        await page.get_by_text("Submitted: “a robin").wait_for()
        await ann.follows("end")
        assert ann.done == set(STEPS)
        assert ann.guessed == []
