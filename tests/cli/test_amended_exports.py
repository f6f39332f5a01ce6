"""What `aeenc export` and `import` make of verdicts that people have amended."""

from __future__ import annotations

import asyncio
import json

from aeenc.oracle import REFUSES
from support.worlds.sampler_world import SamplerWorld, at_work, take


async def test_an_overruled_verdict_is_in_no_export_unless_asked_for(aeenc, world: SamplerWorld, tmp_path):
    async with at_work(world, 1) as (people, sampler, run_id):
        lease = await take(people, "ann")
        ids = [c.premise_id for c in lease.task.candidates]
        answer = await people.submit(lease, ids[:2])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        await people.amend(answer.answer_id, {ids[0]: REFUSES}, "bob")
        target = ("--sampler", sampler.channel.target, "--json")

        async def exported(kind: str, *options: str) -> list[dict[str, object]]:
            file = tmp_path / f"{kind}.jsonl"
            ended = await aeenc(*target, "export", kind, run_id, "--to", file, *options)
            assert ended.code == 0, ended.stderr
            return [json.loads(line) for line in file.read_text().splitlines()]

        signs = [(one["premise_id"], one["sign"]) for one in await exported("pairs")]
        assert sorted(signs) == sorted(zip(ids, ["negative", "positive", "negative", "negative"], strict=True))
        assert [one["premise_id"] for one in await exported("pairs", "--sign", "positive")] == [ids[1]]
        assert {one["positive_id"] for one in await exported("triplets")} == {ids[1]}
        assert len(await exported("pairs", "--overruled")) == 5
        ended = await aeenc(*target, "import", "pairs", tmp_path / "pairs.jsonl", "--corpus", "science")
        assert ended.json["pairs"] == 4
        imported = await sampler.run(ended.json["run"])
        assert (imported.progress.positives, imported.progress.negatives) == (1, 3)
