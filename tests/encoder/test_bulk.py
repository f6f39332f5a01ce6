"""Two encoders that compute share bulk work; one that dies in the middle leaves no trace in the vectors."""

import asyncio

import numpy as np

from aeenc import Channel, EncoderClient
from aeenc.calls.bulk import BatchQueue, BulkStream
from support.models.tiny_checkpoints import WORDS

TEXTS = [" ".join(WORDS[(n * step) % len(WORDS)] for step in range(1, 4 + n % 9)) for n in range(2000)]


async def test_vectors_are_the_same_with_and_without_a_kill(serve, stable, tmp_path, monkeypatch):
    answered: list[float] = []
    returned: list[float] = []
    is_under_way = asyncio.Event()
    original, give_back, take = BatchQueue.answered, BatchQueue.give_back, BulkStream._answered

    def noted(self, batch, outcome):
        answered.append(batch.seq)
        original(self, batch, outcome)

    def noted_back(self, batches):
        batches = list(batches)
        returned.extend(batch.seq for batch in batches)
        give_back(self, batches)

    def taken(self, response):
        take(self, response)
        if self.channel.target.endswith(f":{first.port}") and self.is_awaited and len(answered) > 10:
            is_under_way.set()

    monkeypatch.setattr(BatchQueue, "answered", noted)
    monkeypatch.setattr(BatchQueue, "give_back", noted_back)
    monkeypatch.setattr(BulkStream, "_answered", taken)
    async with serve(state_dir=tmp_path / "a") as (first, _), serve(state_dir=tmp_path / "b") as (second, alone):
        expected = [batch async for batch in alone.encode_all(TEXTS, role="premise", batch=16)]
        assert {batch.model_version for batch in expected} == {stable.version}
        answered.clear()
        is_under_way.clear()
        both = Channel(f"127.0.0.1:{first.port},127.0.0.1:{second.port}", timeout_s=10)

        async def encode() -> list[np.ndarray]:
            client = EncoderClient(both)
            return [b.vectors async for b in client.encode_all(TEXTS, role="premise", batch=16, patience_s=10)]

        work = asyncio.ensure_future(encode())
        waiting = asyncio.ensure_future(is_under_way.wait())
        await asyncio.wait([waiting, work], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await first.stop(0)
        found = await work
        await both.close()
    assert returned, "the encoder that was killed owed nothing"
    assert sorted(answered) == list(range(1, 126)), "every batch is answered once"
    wanted = np.concatenate([batch.vectors for batch in expected])
    assert np.allclose(np.concatenate(found), wanted, atol=1e-6)
