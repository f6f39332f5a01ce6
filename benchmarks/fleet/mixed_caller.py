"""The whole loop as a program of some release runs it; `mixed-versions` starts it with the SDK of either release.

    build ─▶ retrieve ─▶ run with an oracle ─▶ job ─▶ publish while others retrieve ─▶ build and activate again

It uses only what the SDKs of both releases have, and nothing else of either. stdin: what to do; stdout: per step "" or
what went wrong. Both are JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

from aeenc import AsyncClient, errors
from aeenc.v1 import sampler_pb2, trainer_pb2, types_pb2


class Loop:
    """One round of the loop over a corpus of its own. `given`: targets, corpus, facts, roots, validation, job."""

    def __init__(self, client: Any, given: dict[str, Any]) -> None:
        self._client, self._given, self._corpus = client, given, given["corpus"]
        self._generation = self._run = self._version = ""

    async def build(self) -> str:
        """Builds the facts but the last, and finds them."""
        return await self._build(self._given["facts"][:-1])

    async def sample(self) -> str:
        """Samples with the oracle, and reads the pairs."""
        roots = [(f"tree-{n}", text) for n, text in enumerate(self._given["roots"])]
        sampler = self._client.sampler
        run = await sampler.start_run(roots, corpus=self._corpus, oracle="gold", k=4, max_depth=1)
        done = await sampler.wait(run.id)
        list_pairs = getattr(sampler, "list_pairs", None) or sampler.pairs  # its name before
        pairs = [one async for one in list_pairs(run.id)]
        self._run = run.id
        if done.state != sampler_pb2.RUN_STATE_SUCCEEDED or not pairs:
            return f"run {run.id} is in state {done.state} with {len(pairs)} pairs: {done.error}"
        return "" if done.generation == self._generation else f"it searched {done.generation}"

    async def train(self) -> str:
        """Trains on what the oracle said."""
        validation = [(text, tuple(gold)) for text, gold in self._given["validation"]]
        fields = {**self._given["job"], "corpus": self._corpus, "run_ids": [self._run]}
        job = await self._client.trainer.start_job(validation=validation, **fields)
        done = await self._client.trainer.wait(job.id)
        self._version = done.version
        return "" if done.state == trainer_pb2.JOB_STATE_SUCCEEDED else f"job {job.id} failed: {done.error}"

    async def publish(self) -> str:
        """Publishes while callers retrieve and encode; from the answer on the new version serves."""
        failed: list[str] = []
        callers = [asyncio.create_task(self._call(failed)) for _ in range(4)]
        try:
            done = await self._client.registry.publish(self._version, force=True, wait_s=20)
            served = (await self._client.encoder.encode(self._given["roots"][:1], label="stable")).model_version
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        if failed:
            return f"{len(failed)} calls failed meanwhile: {failed[0]}"
        return "" if done.complete and served == self._version else f"complete: {done.complete}, {served} serves"

    async def activate(self) -> str:
        """Builds all facts while callers retrieve; from the answer on the new generation serves."""
        before, failed = self._generation, list[str]()
        caller = asyncio.create_task(self._call(failed))
        try:
            problem = await self._build(self._given["facts"])
        finally:
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)
        if failed:
            return f"{len(failed)} calls failed meanwhile: {failed[0]}"
        return problem or ("" if self._generation != before else "it is the same generation")

    async def _build(self, facts: list[str]) -> str:
        premises = [types_pb2.Premise(id=f"f{n}", text=text, splits=("train",)) for n, text in enumerate(facts)]
        self._generation = (await self._client.index.build(self._corpus, premises)).id
        found = await self._client.index.retrieve(self._corpus, [facts[-1]], k=5)
        if found.generation != self._generation:
            return f"generation {found.generation} answers, not {self._generation}"
        hits = [hit.id for hit in found.results[0]]
        return "" if len(hits) == 5 else f"hits {hits}"

    async def _call(self, failed: list[str]) -> None:
        while True:
            try:
                await self._client.index.retrieve(self._corpus, self._given["roots"][:2], k=3)
                await self._client.encoder.encode(self._given["roots"][:2])
            except errors.AeencError as error:
                failed.append(str(error))
            await asyncio.sleep(0.01)


STEPS = ("build", "sample", "train", "publish", "activate")


async def main() -> None:
    """Runs the steps until one goes wrong."""
    given, told = json.load(sys.stdin), {}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(**given["targets"], timeout_s=60.0))
        loop = Loop(client, given)
        for step in STEPS:
            try:
                told[step] = await asyncio.wait_for(getattr(loop, step)(), 180)
            except Exception as error:  # noqa: BLE001 -- it is what the row tells
                told[step] = f"{type(error).__name__}: {error}"
            if told[step]:
                break
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
