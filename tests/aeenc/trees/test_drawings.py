"""Trees as pictures: every node stands where it belongs, boxes do not overlap, texts cannot break out."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from aeenc.trees import Dataset, Step, Tree, to_svg

SAMPLE = Path(__file__).parents[3] / "data" / "sample"
SVG = "{http://www.w3.org/2000/svg}"
NASTY = 'a "quoted" <b>text</b> & \\n a back\\slash, \x07 and \ud7ff'


def tree(text: str = "iron is magnetic") -> Tree:
    return Tree(
        "t1",
        "the nail moves",
        {"sent1": text, "sent2": "a magnet pulls iron", "sent3": "a nail is iron"},
        (
            Step(("sent1", "sent2"), "int1", "the magnet pulls the nail"),
            Step(("int1", "sent3"), "hypothesis", "the nail moves"),
        ),
    )


def boxes(svg: str) -> list[tuple[float, float, float, float, str]]:
    """(left, top, right, bottom, text) of each box."""
    root = ET.fromstring(svg)
    found = []
    for frame, text in zip(root.findall(f"{SVG}rect"), root.findall(f"{SVG}text"), strict=True):
        left, top = float(frame.get("x", 0)), float(frame.get("y", 0))
        right, bottom = left + float(frame.get("width", 0)), top + float(frame.get("height", 0))
        found.append((left, top, right, bottom, " ".join(span.text or "" for span in text.iter(f"{SVG}tspan"))))
    return found


def test_an_svg_has_a_box_for_each_node_and_a_line_to_each_premise():
    svg = to_svg(tree())
    texts = [box[4] for box in boxes(svg)]
    assert sorted(texts) == sorted(tree().texts.values())
    assert len(ET.fromstring(svg).findall(f"{SVG}g/{SVG}path")) == 4
    by_text = {box[4]: box for box in boxes(svg)}
    assert by_text["the nail moves"][0] < by_text["the magnet pulls the nail"][0] < by_text["iron is magnetic"][0]
    assert by_text["a nail is iron"][0] == by_text["the magnet pulls the nail"][0]


def wordy() -> Tree:
    """Conclusions that take much more room than their premises."""
    long = " ".join(["word"] * 60)
    steps = (
        Step(("sent1",), "int1", f"{long} one"),
        Step(("sent2",), "int2", f"{long} two"),
        Step(("int1", "int2"), "hypothesis", f"{long} {long} {long} {long}"),
    )
    return Tree("wordy", steps[-1].text, {"sent1": "a", "sent2": "b"}, steps)


def test_no_two_boxes_of_a_picture_overlap_and_all_lie_within_it():
    trees = Dataset.load(SAMPLE).trees("train")
    assert len(trees) > 50
    for one in [*trees, wordy()]:
        root = ET.fromstring(to_svg(one))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        found = boxes(to_svg(one))
        assert all(box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height for box in found), one.id
        for a, b in itertools.combinations(found, 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (one.id, a, b)


@pytest.mark.parametrize(
    "text", ["鉄は磁石に引き寄せられる金属である" * 3, "MAGNETS PULL IRON AND STEEL " * 3, "x" * 100]
)
def test_lines_of_wide_letters_and_endless_words_stay_within_their_box(text: str):
    root = ET.fromstring(to_svg(tree(text)))
    lines = [span.text or "" for span in root.iter(f"{SVG}tspan")]
    assert max(len(line) for line in lines if line[:4] in text) <= (32 if text[0] == "x" else 16)
    assert "".join(line for line in lines if line[:4] in text).replace(" ", "") == text.replace(" ", "")


def test_a_text_cannot_break_out_of_a_picture():
    [box] = [box for box in boxes(to_svg(tree(NASTY))) if "quoted" in box[4]]
    assert box[4].split() == NASTY.replace("\x07", "\ufffd").split()


def test_a_premise_of_two_conclusions_is_one_box():
    shared = Tree(
        "t",
        "h",
        {"sent1": "both"},
        (Step(("sent1",), "int1", "a"), Step(("sent1",), "int2", "b"), Step(("int1", "int2"), "hypothesis", "h")),
    )
    svg = to_svg(shared)
    assert [box[4] for box in boxes(svg)].count("both") == 1
    assert svg.count("<path") == 4
