"""Admission counts real tokens: texts with more of them than their characters suggest do not overfill a lane."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from kit.test_credentials import credential, write

from aeenc import Channel, EncoderClient, errors
from services.encoder.batching.queues import Call
from services.encoder.runtime.model import Tokenization
from services.encoder.runtime.runners import PaddedRunner
from support.waiting import until

LETTERS = "z" * 60  # sixty tokens of the tiny tokenizer, and two special ones; by its characters, seventeen


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch):
    """Holds each run until `go`; `queued` are the lane's tokens at each run."""

    class Watched:
        def __init__(self) -> None:
            self.go, self.queued, self.server = threading.Event(), [], None

    seen = Watched()
    seen.go.set()
    original = PaddedRunner.run

    def run(self, batch):
        if seen.server is not None:
            queued = seen.server.metrics.get_sample_value("aeenc_encoder_queued_tokens", {"lane": "interactive"})
            seen.queued.append(queued)
            seen.go.wait(10)
        return original(self, batch)

    monkeypatch.setattr(PaddedRunner, "run", run)
    return seen


async def test_a_call_holds_the_tokens_that_it_really_has(serve, stable, watched) -> None:
    async with serve(queued_tokens=8192) as (server, client):
        watched.server = server
        await client.encode([LETTERS] * 10)
        assert max(watched.queued) == 620


async def test_a_call_that_has_no_room_by_its_characters_is_refused_unread(serve, stable, watched, monkeypatch) -> None:
    async with serve(queued_tokens=8192, workers=1) as (server, client):
        read: list[int] = []
        texts_of = Tokenization.texts
        monkeypatch.setattr(
            Tokenization,
            "texts",
            lambda self, texts, **given: read.append(len(texts)) or texts_of(self, texts, **given),
        )
        watched.go.clear()
        watched.server = server
        first = [asyncio.create_task(client.encode([LETTERS] * 8, timeout_s=10)) for _ in range(5)]
        await until(lambda: read == [8] * 5)
        impatient = EncoderClient(client.channel.with_options(retry=False))
        with pytest.raises(errors.Overloaded, match="504 more"):
            await impatient.encode(["sun " * 40] * 12)
        assert read == [8] * 5
        watched.go.set()
        await asyncio.gather(*first)


async def test_a_call_larger_than_a_lane_is_computed_in_parts_that_fit(serve, stable, watched) -> None:
    async with serve(queued_tokens=1024) as (server, client):
        texts = [LETTERS[n % 7 :] for n in range(50)]
        alone = [(await client.encode([text])).vectors[0] for text in texts[:7]]
        watched.server = server
        answer = await client.encode(texts, timeout_s=10)
        assert max(watched.queued) <= 96
        np.testing.assert_allclose(answer.vectors, np.stack([alone[n % 7] for n in range(50)]), atol=1e-5)
        assert answer.model_version == stable.version


async def test_a_call_whose_caller_gives_up_is_charged_all_the_same(serve, stable, watched, tmp_path) -> None:
    async with serve(tokens_file=write(tmp_path / "tokens.toml", credential(tokens_per_s=10.0))) as (server, _):
        client = EncoderClient(Channel(f"127.0.0.1:{server.port}", token="lab"))
        await client.encode(["sun"])
        watched.go.clear()
        watched.server = server
        leaving = asyncio.create_task(client.encode([LETTERS] * 5))  # 310 tokens, half a minute of the quota
        await until(lambda: bool(watched.queued))
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        watched.go.set()
        with pytest.raises(errors.Overloaded, match="quota"):
            await EncoderClient(client.channel.with_options(retry=False)).encode(["sun"])
        await client.channel.close()


async def test_a_text_is_alone_beside_large_calls_of_its_caller_but_not_beside_another_text(
    serve, stable, watched, monkeypatch
) -> None:
    made: list[tuple[int, bool]] = []

    class Noted(Call):
        def __init__(self, count: int, *arguments: Any) -> None:
            super().__init__(count, *arguments)
            made.append((count, self.is_alone))

    monkeypatch.setattr("services.encoder.batching.batcher.Call", Noted)
    async with serve() as (server, client):
        watched.go.clear()
        watched.server, calls = server, []
        for count in (3, 1, 1, 3):
            calls.append(asyncio.create_task(client.encode(["sun"] * count)))
            await until(lambda: len(made) == len(calls))
        assert made == [(3, True), (1, True), (1, False), (3, False)]
        watched.go.set()
        await asyncio.gather(*calls)
