"""The gold oracle: direct and subtree answers over a real socket, leaves, and what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from aeenc import Channel, errors
from aeenc.oracle import EXPLAINS, REFUSES, UNSEEN, Candidate, Task, Verdict, answer_of
from aeenc.oracles.client import OracleClient
from aeenc.oracles.gold import GoldOracle
from aeenc.trees import Dataset
from support.small_trees import write_small_trees


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.load(write_small_trees(tmp_path / "trees"))


async def ask(oracle: GoldOracle, query: str, *texts: str) -> dict[str, Verdict]:
    server = await oracle.start()
    client = OracleClient(Channel(f"127.0.0.1:{server.port}"))
    candidates = tuple(Candidate(text, text, rank, 0.5) for rank, text in enumerate(texts, start=1))
    [answer] = await client.judge("run", [Task("t", "run", query, (), (), candidates)])
    await client.channel.close()
    await server.stop(0)
    assert (answer.task_id, answer.annotator) == ("t", "gold")
    return {one.premise_id: Verdict(one.judgement, one.leaf) for one in answer.verdicts}


async def test_gold_is_the_union_of_a_querys_children_over_all_trees(dataset: Dataset):
    verdicts = await ask(
        GoldOracle(dataset, "train"),
        "the nail moves",
        "a nail is iron",
        "forces move things",
        "the magnet pulls the nail",
        "iron is magnetic",
        "A nail is iron",
    )
    assert verdicts == {
        "a nail is iron": Verdict(EXPLAINS, leaf=True),
        "forces move things": Verdict(EXPLAINS, leaf=True),
        "the magnet pulls the nail": Verdict(EXPLAINS, leaf=False),
        "iron is magnetic": Verdict(REFUSES),
        "A nail is iron": Verdict(REFUSES),
    }


async def test_subtree_mode_accepts_descendants(dataset: Dataset):
    oracle = GoldOracle(dataset, "train", mode="subtree")
    verdicts = await ask(oracle, "the nail moves", "iron is magnetic", "ice is light")
    assert verdicts == {"iron is magnetic": Verdict(EXPLAINS, leaf=True), "ice is light": Verdict(REFUSES)}


@pytest.mark.parametrize("query", ["ice floats", "iron is magnetic", "something else"])
async def test_a_query_without_gold_children_in_the_split_is_never_refused(dataset: Dataset, query: str):
    verdicts = await ask(GoldOracle(dataset, "train"), query, "ice is light", "a nail is iron")
    assert set(verdicts.values()) == {Verdict(UNSEEN)}


def test_an_unknown_split_or_mode_is_refused_by_name(dataset: Dataset):
    with pytest.raises(errors.NotFound, match="'test'"):
        GoldOracle(dataset, "test")
    for mode in ("tree", ["tree"]):
        with pytest.raises(errors.InvalidArgument, match="'tree'"):
            GoldOracle(dataset, "train", mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("accepted", "candidates", "said"),
    [((), ("c1", "c2", "other"), "complete"), (("c1",), ("c2",), "complete"), ((), ("c1", "other"), "premise_missing")],
)
async def test_with_steps_it_says_whether_a_premise_is_missing(
    dataset: Dataset, accepted: tuple[str, ...], candidates: tuple[str, ...], said: str
):
    query = next(query for query in dataset.queries("train") if len(query.gold) == 2)
    texts = {"c1": query.gold[0], "c2": query.gold[1], "other": "something else"}

    def premises(names: tuple[str, ...]) -> tuple[Candidate, ...]:
        return tuple(Candidate(name, texts[name], rank, 0.5) for rank, name in enumerate(names, start=1))

    asked = Task("t", "run", query.text, (), premises(accepted), premises(candidates))
    answer = await answer_of(GoldOracle(dataset, "train", steps=True), asked)
    assert answer.node_verdict == said
    assert (await answer_of(GoldOracle(dataset, "train"), asked)).node_verdict is None
