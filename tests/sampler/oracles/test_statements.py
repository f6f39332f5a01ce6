"""What a remote oracle says of a node as a whole stands in the run as people's words do."""

from __future__ import annotations

import json
from typing import Any

import aeenc
from aeenc.oracle import EXPLAINS, REFUSES, Answer, Task, Verdict
from aeenc.oracles.remote import RemoteOracle
from support.worlds.sampler_world import FACTS, SamplerWorld, answered_by, finish

CONCLUSION = "what the model concludes on the way"
ROOTS = [("tree-0", "hypothesis 0")]


class Talker(aeenc.Oracle):
    """Says everything that an answer holds, and some of it wrongly."""

    name = "talker"

    def judge(self, task: Task) -> Answer[Any]:
        first, second, third, *_ = (one.id for one in task.candidates)
        shown = {one.id for one in task.candidates}
        extra = next(f"p{n}" for n in range(FACTS) if f"p{n}" not in shown)
        if task.query != "hypothesis 0":
            return Answer({first: Verdict(EXPLAINS, leaf=True)}, node_verdict="not_explainable")
        return Answer(
            {first: Verdict(EXPLAINS, leaf=True), second: Verdict(EXPLAINS, leaf=True), third: REFUSES},
            note="two ways",
            additions={extra: Verdict(EXPLAINS, leaf=True, grade=0.5), first: EXPLAINS, "nowhere": EXPLAINS},
            written=["a fact that the corpus lacks", " "],
            intermediates=[CONCLUSION, task.query],
            alternatives=[[first], [second, extra], [second, "nowhere"], [first, third], []],
            inference="because of it, this",
            node_verdict="premise_missing",
        )


async def test_what_a_remote_oracle_says_of_a_node_stands_in_tree_pairs_and_export(world: SamplerWorld):
    served = await Talker().start("127.0.0.1:0")
    async with answered_by(world, RemoteOracle(f"127.0.0.1:{served.port}")) as sampler:
        run = await finish(sampler, hypotheses=ROOTS, max_depth=1)
        assert run.state.name == "SUCCEEDED", run.error
        tree = await aeenc.PeopleClient(sampler.channel).get_tree(run.id, "tree-0")
        pairs = [pair async for pair in sampler.list_pairs(run.id)]
        [exported] = [json.loads(record) async for _, record in sampler.export_trees(run.id)]
    await served.stop()
    root, node = tree.nodes
    first, second, extra, written = root.accepted
    assert (written.premise_id, written.text, written.annotator) == ("", CONCLUSION, "talker")
    [said] = root.answers
    assert (said.annotator, said.note, said.inference) == ("talker", "two ways", "because of it, this")
    assert said.node_verdict is aeenc.values.NodeVerdict.PREMISE_MISSING
    assert (said.written, said.intermediates) == (("a fact that the corpus lacks",), (CONCLUSION,))
    ways = [one.premise_ids for one in said.alternatives]
    assert ways == [(first.premise_id,), (second.premise_id, extra.premise_id)]
    assert (node.text, node.author) == (CONCLUSION, "talker")
    assert [one.node_verdict.name for one in node.answers] == ["NOT_EXPLAINABLE"]
    [added] = [pair for pair in pairs if pair.premise_id == extra.premise_id and pair.query == root.text]
    assert {pair.provenance.note for pair in pairs if pair.query == root.text} == {"two ways"}
    origin = added.provenance
    assert (added.sign.name, origin.rank, bool(origin.node_id)) == ("POSITIVE", 0, True)
    assert (origin.annotator, origin.grade) == ("talker", 0.5)
    assert exported["authors"] == {"int1": "talker"}
