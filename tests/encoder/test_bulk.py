"""Two encoders that compute share bulk work; one that dies in the middle leaves no trace in the vectors."""

import asyncio

import numpy as np
from tinymodel import WORDS, register

from aeenc import Channel, EncoderClient
from aeenc.bulk_stream import Work

TEXTS = [" ".join(WORDS[(n * step) % len(WORDS)] for step in range(1, 4 + n % 9)) for n in range(2000)]


async def test_vectors_are_the_same_with_and_without_a_kill(serve, registry, tiny_checkpoint, tmp_path, monkeypatch):
    await register(registry, tiny_checkpoint, label="stable")
    answered: list[float] = []
    original = Work.answered

    def noted(self, batch, outcome):
        answered.append(batch.seq)
        original(self, batch, outcome)

    monkeypatch.setattr(Work, "answered", noted)
    async with serve(state_dir=tmp_path / "a") as (first, _), serve(state_dir=tmp_path / "b") as (second, alone):
        expected = [batch async for batch in alone.encode_all(TEXTS, role="premise", batch=16)]
        assert {batch.model_version for batch in expected} == {tiny_checkpoint.version}
        answered.clear()
        both = Channel(f"127.0.0.1:{first.port},127.0.0.1:{second.port}", timeout_s=10)
        found = []

        async def encode() -> None:
            async for batch in EncoderClient(both).encode_all(TEXTS, role="premise", batch=16, patience_s=10):
                found.append(batch.vectors)  # noqa: PERF401 -- the test looks at it meanwhile

        work = asyncio.ensure_future(encode())
        while len(answered) < 20:  # noqa: ASYNC110 -- what is awaited has no event
            await asyncio.sleep(0.001)
        await first.stop(0)
        received = len(answered)
        await work
        await both.close()
    assert received < 125, "nothing was left to be done when the encoder was killed"
    assert sorted(answered) == list(range(1, 126)), "every batch is answered once"
    wanted = np.concatenate([batch.vectors for batch in expected])
    assert np.allclose(np.concatenate(found), wanted, atol=1e-6)
