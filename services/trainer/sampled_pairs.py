"""The way to the sampler: the pairs of runs, as training needs them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aeenc.errors import FailedPrecondition
from aeenc.sampler import SamplerClient
from services.trainer.training_set import JudgedPair, Sign

_SIGNS: dict[int, Sign] = {1: "POSITIVE", 2: "NEGATIVE", 3: "SKIPPED"}


class SampledPairs:
    """Reads pair logs through the sampler's own interface."""

    def __init__(self, sampler: SamplerClient) -> None:
        self._sampler = sampler

    async def check(self, corpus: str, run_ids: tuple[str, ...], split: str, *, need_positives: bool = True) -> None:
        """Raises NotFound for an unknown run, FailedPrecondition for runs of another corpus or without positives."""
        positives = 0
        for run_id in run_ids:
            run = await self._sampler.run(run_id)
            if run.config.corpus != corpus:
                raise FailedPrecondition(f"run {run_id} is over corpus {run.config.corpus!r}, the job over {corpus!r}")
            if split and run.config.split not in {"", split}:
                raise FailedPrecondition(
                    f"run {run_id} is over hypotheses of split {run.config.split!r}, the job learns from {split!r} "
                    "only; leave the run out, or the split empty"
                )
            positives += run.progress.positives
        if need_positives and not positives:
            names = ", ".join(run_ids)
            raise FailedPrecondition(
                f"runs {names} hold no positive pair yet; let the oracle accept something first", reason="NO_POSITIVES"
            )

    async def read(self, run_ids: tuple[str, ...]) -> AsyncIterator[JudgedPair]:
        """All pairs of runs, in the order of the runs and of their logs, without those that were amended since.

        Each has the split of its run's hypotheses.
        """
        for run_id in run_ids:
            split = (await self._sampler.run(run_id)).config.split
            found: dict[tuple[str, str, str], list[Sign]] = {}
            async for pair in self._sampler.pairs(run_id):
                sign = _SIGNS.get(pair.sign)
                if sign is not None:
                    signs = found.setdefault((pair.query, pair.premise_id, pair.premise), [])
                    if pair.provenance.amended:
                        signs.clear()
                    signs.append(sign)
            for key, signs in found.items():
                for sign in signs:
                    yield JudgedPair(*key, sign, split)

    async def close(self) -> None:
        """Closes the connection."""
        await self._sampler.channel.close()
