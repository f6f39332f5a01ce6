"""Every view with sentences that people would judge; the pictures of docs/workbench.md are made here."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from aeenc.v1 import index_pb2, types_pb2
from support.worlds.sampler_world import FakeIndex

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
FACTS = ROOT / "data" / "sample" / "supporting_data" / "worldtree_corpus_sentences_extended.json"


class SampleIndex(FakeIndex):
    """Finds the sentences of the sample that share most words with a query."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, str] = json.loads(FACTS.read_text(encoding="utf-8"))

    async def Retrieve(self, request: Any, context: Any) -> index_pb2.RetrieveResponse:
        answer = index_pb2.RetrieveResponse(model_version=self.stable, generation=self.active)
        for text in request.texts:
            wanted = words(text)
            left = {key: fact for key, fact in self.facts.items() if key not in request.exclude_ids and fact != text}
            scores = {key: len(wanted & words(fact)) / len(wanted | words(fact)) for key, fact in left.items()}
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
        page = await at.window("ann")
        await page.get_by_role("heading", level=1).filter(has_text="mirror").wait_for()
        await page.locator(".gutter.seen").nth(8).wait_for()
        for key in ("1", "ArrowDown", "x", "3"):
            await page.keyboard.press(key)
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
        other = await at.window("bob")
        await other.get_by_role("heading", level=1).filter(has_text="mirror").wait_for()
        await other.locator(".gutter.seen").nth(5).wait_for()
        await other.keyboard.press("1")
        await other.keyboard.press("2")
        await other.keyboard.press("Control+Enter")
        await other.get_by_text("Submitted").wait_for()
        lead = await at.window("lead", "adjudicator")
        await lead.get_by_role("link", name="Lead").click()
        await lead.get_by_role("button", name="Decide").wait_for()
        await lead.get_by_role("group").first.get_by_role("button", name="Accept").click()
        await picture(lead, "lead")
