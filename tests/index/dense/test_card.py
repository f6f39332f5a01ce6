"""Exact search on a card, whose model runs on the processor here: the same hits, and what happens when it fails."""

from __future__ import annotations

import asyncio
import gc
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aeenc import errors
from aeenc.v1 import types_pb2
from services import onnx_devices
from services.corpus.arrays import norms_of
from services.index import __main__ as main
from services.index.dense import approximate, batcher, card
from services.index.dense.card import Card
from services.index.dense.exact import FlatIndex
from services.index.settings import IndexSettings
from services.onnx_devices import CPU, CUDA, Placement
from support.waiting import until
from support.worlds.index_world import SPACE, premise, vector_of

ROWS, DIM = 600, 24
LOST = "CUDA failure 46: all CUDA-capable devices are busy or unavailable"
FULL = "Available memory of 1024 is smaller than requested bytes of 4096"
BYTES, WORK = 2 * ROWS * DIM, 2**30


def unit(seed: int, rows: int = ROWS) -> NDArray[np.float32]:
    matrix = np.random.default_rng(seed).normal(size=(rows, DIM))
    return (matrix / norms_of(matrix)[:, None]).astype(np.float32)


def listed(index: FlatIndex, queries: NDArray[np.float32], k: int = 10) -> list[tuple[list[int], list[float]]]:
    return [(hits.ordinals.tolist(), hits.scores.tolist()) for hits in index.nearest(queries, k)]


class FailingCard(Card):
    """A card that can be lost, on this processor, but for searches of so many queries."""

    lost, room = "", 0

    def _multiply(self, *given: Any) -> Any:
        if self.lost and len(given[1]) > self.room:
            raise RuntimeError(self.lost)
        return super()._multiply(*given)


@pytest.mark.parametrize("length", [1e-20, 0.25, 1.0, 3e4])
def test_the_bound_of_half_precision_holds_for_rows_in_the_direction_of_all_roundings(
    monkeypatch: pytest.MonkeyPatch, length: float
) -> None:
    """Components halfway between two numbers of float16: queries and rows are rounded the same way throughout."""
    query = np.full((1, DIM), 1 + 2.0**-11 - 2.0**-20, dtype=np.float32) * length
    matrix = np.concatenate([np.full((1, DIM), (1 + 2.0**-11 - 2.0**-20) / 8, np.float32), unit(1) / 8, 1e-7 * unit(2)])
    monkeypatch.setenv("ORT_CUDA_GEMM_OPTIONS", "1")
    proposer = Card(Placement([CPU])).load(matrix, float(norms_of(matrix).max()))
    assert proposer is not None
    found = proposer.propose(query, 40, None)
    exact = query.astype(np.float64) @ matrix.T.astype(np.float64)
    assert (np.abs(np.take_along_axis(exact, found.ordinals, 1) - found.scores) <= found.error[:, None]).all()
    assert np.delete(exact[0], found.ordinals[0]).max() <= found.ceiling[0]
    assert os.environ["ORT_CUDA_GEMM_OPTIONS"] == "2", "partial sums in float32, which the bound supposes"
    assert found.error[0] < 2e-3 * norms_of(query)[0] * norms_of(matrix).max()


def test_a_card_that_is_lost_leaves_the_same_hits_to_the_cpu_says_so_and_is_tried_again(monkeypatch) -> None:
    matrix, states = unit(3), list[str]()
    expected = listed(FlatIndex(matrix), matrix[:5])
    where = FailingCard(Placement([CPU]), on_state=states.append)
    index = FlatIndex(matrix, coarse=where.load(matrix, 1.0))
    assert listed(index, matrix[:5]) == expected
    assert (index.on_card, states) == (True, [])
    where.lost = LOST
    assert listed(index, matrix[:5]) == expected
    assert not index.on_card
    assert [state.partition(": ")[0] for state in states] == ["the card does not answer"]
    where.lost = ""
    with monkeypatch.context() as rests:
        rests.setattr(where, "_multiply", lambda *_: pytest.fail("asked while it rests"))
        assert listed(index, matrix[:5]) == expected
    now = card.time.monotonic() + card.TRIED_AGAIN_S
    monkeypatch.setattr(card, "time", SimpleNamespace(monotonic=lambda: now))
    assert index.on_card
    assert listed(index, matrix[:5]) == expected
    assert states[1:] == [""]


@pytest.mark.parametrize("lost", [LOST, FULL])
def test_a_card_asked_for_by_name_is_not_replaced(lost: str) -> None:
    matrix, states = unit(4), list[str]()
    where = FailingCard(Placement([CPU]), is_must=True, on_state=states.append)
    index = FlatIndex(matrix, coarse=where.load(matrix, 1.0))
    for where.lost, where.room, told in ((FULL, 1, 0), (lost, 0, 1), (lost, 0, 1)):
        with pytest.raises(errors.Unavailable, match=rf"{where.lost[:15]}.*AEENC_INDEX_DEVICE=auto"):
            index.nearest(matrix[:2], 5)
        assert len(states) == told, "the next search may have room"


async def test_a_lost_card_asked_for_by_name_is_probed_even_while_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "TRIED_AGAIN_S", 0.02)
    matrix, states = unit(4), list[str]()
    where = FailingCard(Placement([CPU]), is_must=True, on_state=states.append)
    index = FlatIndex(matrix, coarse=where.load(matrix, 1.0))
    where.lost = LOST
    with pytest.raises(errors.Unavailable):
        index.nearest(matrix[:1], 5)
    where.lost = FULL
    await until(lambda: FULL in states[-1])
    where.lost = ""
    await until(lambda: not states[-1])


def test_what_does_not_fit_on_the_card_is_searched_on_the_cpu_and_said_until_it_is_closed() -> None:
    states = list[str]()
    where = Card(Placement([CPU]), gpu_bytes=WORK + BYTES + 100, on_state=states.append)
    first, second, small = where.load(unit(5), 1.0), unit(6), unit(7, 1)
    assert first is not None
    assert where.load(second, 1.0) is None
    assert f"600 premises need {BYTES:,} bytes" in states[-1]
    assert f"{WORK + BYTES:,} of AEENC_INDEX_GPU_BYTES={WORK + BYTES + 100:,} are taken" in states[-1]
    assert where.load(small, 1.0) is not None
    assert len(states) == 1, "another generation that fits is no news of this one"
    del second
    gc.collect()
    assert states[1:] == [""]
    del first
    gc.collect()
    assert where.load(unit(6), 1.0) is not None, "a generation that is closed leaves its room"
    assert where.load(1e5 * unit(5), 1e5) is None


def test_what_does_not_fit_on_a_card_asked_for_by_name_is_refused_with_a_remedy_that_helps() -> None:
    where = Card(Placement([CPU]), gpu_bytes=WORK + BYTES - 1, is_must=True)
    with pytest.raises(errors.FailedPrecondition, match=f"600 premises need {BYTES:,} bytes .* delete old generations"):
        where.load(unit(5), 1.0)
    with pytest.raises(errors.FailedPrecondition, match=r"length 100,000 .*; build the corpus from vectors of at most"):
        where.load(1e5 * unit(5), 1e5)


def test_a_card_without_memory_for_a_search_is_asked_again_at_once() -> None:
    matrix, states = unit(3), list[str]()
    where = FailingCard(Placement([CPU]), on_state=states.append)
    index = FlatIndex(matrix, coarse=where.load(matrix, 1.0))
    where.lost = FULL
    expected = listed(FlatIndex(matrix), matrix[:5])
    assert listed(index, matrix[:5]) == expected
    assert index.on_card
    where.lost = ""
    assert listed(index, matrix[:5]) == expected
    assert [state.partition(": ")[0] for state in states] == ["the card has no memory to multiply in", ""]


def test_a_card_that_takes_no_more_is_no_end_of_the_index(monkeypatch) -> None:
    states = list[str]()
    where = Card(Placement([CPU]), gpu_bytes=WORK + BYTES, on_state=states.append)
    with monkeypatch.context() as full:
        full.setattr(where, "_copy", lambda _: (_ for _ in ()).throw(RuntimeError("out of memory")))
        assert where.load(unit(5), 1.0) is None
    assert states[0] == "searches 600 premises on the CPU: the card did not take 600 premises: out of memory"
    assert where.load(unit(5), 1.0) is not None, "what was not taken is still free"


@pytest.mark.parametrize(("on_card", "at_once"), [(True, 64), (False, 4)])
def test_a_card_multiplies_whole_batches_with_however_many_rows(monkeypatch, on_card: bool, at_once: int) -> None:
    monkeypatch.setattr(batcher, "MULTIPLIED_ROWS", 4 * ROWS)
    index = FlatIndex(unit(5))
    if on_card:
        index.coarse = Card(Placement([CPU])).load(index.vectors, 1.0)
    search: Any = SimpleNamespace(served=SimpleNamespace(index=index))
    assert batcher._queries_at_once(search) == at_once


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[FailingCard]:
    """The cards that indexes open, each of them this processor."""
    opened: list[FailingCard] = []

    class StandIn(FailingCard):
        def __init__(self, _: Placement, **given: Any) -> None:
            super().__init__(Placement([CPU]), **given)
            opened.append(self)

    def providers_of(*asked: Any) -> Placement:
        assert asked[2] == 2**31
        return Placement([CUDA, CPU], options=[{"device_id": "0"}, {}])

    monkeypatch.setattr(card, "providers_of", providers_of)
    monkeypatch.setattr(main, "Card", StandIn)
    monkeypatch.setattr(approximate, "CODES_FROM", 2)
    return opened


@pytest.mark.parametrize(("lost", "told"), [(LOST, "does not answer"), (FULL, "has no memory to multiply in")])
async def test_an_index_whose_named_card_is_lost_or_full_is_not_ready_until_it_answers(
    serve, cards, monkeypatch, lost: str, told: str
) -> None:
    async with serve(device="cuda:0", gpu_bytes=2**31) as index:
        await index.client.build("science", [premise(f"f{n}", f"fact {n}") for n in range(90)])
        found = partial(index.client.search, "science", [vector_of("fact 7")], space_id=SPACE, k=5)
        ids = (await found()).ids
        monkeypatch.setattr(card, "TRIED_AGAIN_S", 0.05)
        cards[0].lost = lost
        repeated = asyncio.ensure_future(found())
        await until(lambda: index.server.readiness.is_in("STARTING"))
        assert index.server.readiness.reason.startswith(f"the card {told}: {lost}")
        cards[0].lost = ""
        assert (await repeated).ids == ids
        assert index.server.readiness.is_in("SERVING")


async def test_an_index_goes_on_with_the_same_hits_and_degraded_when_its_card_is_lost(serve, cards) -> None:
    async with serve(device="auto", gpu_bytes=2**31) as index:
        await index.client.build("science", [premise(f"f{n}", f"fact {n}") for n in range(90)])
        assert index.server.readiness.is_in("SERVING")
        queries = np.stack([vector_of(text) for text in ("fact 7", "a new fact")])
        found = await index.client.search("science", queries, space_id=SPACE, k=5)
        cards[0].lost = LOST
        again = await index.client.search("science", queries, space_id=SPACE, k=5)
        assert (again.ids, np.array(again.scores).tolist()) == (found.ids, np.array(found.scores).tolist())
        await until(lambda: index.server.readiness.is_in("DEGRADED"))
        assert "the card does not answer: CUDA failure 46" in (await index.client.info()).service.state_reason


async def test_a_cuda_that_does_not_work_degrades_auto_and_ends_the_start_of_cuda(serve, monkeypatch) -> None:
    monkeypatch.setattr(onnx_devices.ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnx_devices.ort, "preload_dlls", lambda: None)
    async with serve(device="auto") as index:
        info = await index.client.info()
        assert info.service.state == types_pb2.SERVICE_STATE_DEGRADED
        assert info.service.state_reason.endswith(
            "repair the driver or the CUDA libraries, or set AEENC_INDEX_DEVICE=cpu"
        )
    with pytest.raises(errors.FailedPrecondition, match=r"AEENC_INDEX_DEVICE=cuda:1, but .* another card than 1"):
        main.build(IndexSettings(port=0, device="cuda:1"))
