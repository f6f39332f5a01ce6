"""A build over several encoders: the same generation as over one, whatever becomes of them meanwhile."""

import asyncio

import numpy as np
import pytest
from pydantic import ValidationError

from aeenc import errors
from aeenc.v1 import index_pb2
from services.index.settings import IndexSettings
from support.waiting import until
from support.worlds.index_world import SPACE, RunningEncoder, files_of, premise, raises

PREMISES = [premise(f"p{n}", f"fact {n} about {n % 7}") for n in range(400)]


@pytest.fixture
async def encoders():
    async with RunningEncoder() as one, RunningEncoder() as other:
        one.servicer.pause_s = other.servicer.pause_s = 0.01
        yield [one, other]


@pytest.fixture
async def index(serve, encoders):
    async with serve(encoder_target=",".join(one.target for one in encoders), build_encode_timeout_s=5.0) as running:
        yield running


def stored(index, generation):
    return np.load(index.store.root / "generations/science" / generation.id / "vectors.npy", allow_pickle=False)


async def test_an_encoder_killed_in_the_middle_changes_nothing_in_what_is_built(index, encoders):
    progress = []
    work = asyncio.ensure_future(
        index.client.build("science", iter(PREMISES), on_progress=lambda *seen: progress.append(seen[1]))
    )
    await until(lambda: max(progress, default=0) > 80)
    await encoders[0].stop()
    generation = await work
    assert progress == sorted(progress)
    encoded = [text for one in encoders for text in one.servicer.encoded_premises]
    assert len(encoded) - len(set(encoded)) <= 4 * 8, "only what was on its way to the killed one is computed again"
    matrix = stored(index, generation)
    again = await index.client.build("science", PREMISES)  # with the one that is left
    assert again.id == generation.id, "a generation's id is the digest of its files"
    assert matrix.tobytes() == stored(index, again).tobytes()


@pytest.mark.parametrize(
    ("field", "error"), [("version", errors.FailedPrecondition), ("space_id", errors.SpaceMismatch)]
)
async def test_an_encoder_of_another_version_or_space_in_the_middle_stops_the_build(index, encoders, field, error):
    progress = []
    work = asyncio.ensure_future(
        index.client.build("science", iter(PREMISES), on_progress=lambda *seen: progress.append(seen[1]))
    )
    await until(lambda: max(progress, default=0) > 80)
    setattr(encoders[1].servicer, field, "another")
    await raises(error, work, "another")
    assert files_of(index.store) == {}
    assert not [one async for one in index.client.list_corpora()]
    await until(lambda: not any(one.servicer.open_streams for one in encoders))


async def test_a_delta_in_another_space_than_its_base_is_refused(index, encoders):
    base = await index.client.build("science", PREMISES)
    for one in encoders:
        one.servicer.space_id = "sother"
    call = index.client.build("science", [premise("n", "new")], base_generation=base.id)
    await raises(errors.SpaceMismatch, call, "sother", SPACE)


async def test_what_is_answered_is_written_although_the_caller_is_slow(index):
    written = []

    async def requests():
        yield index_pb2.BuildGenerationRequest(header=index_pb2.BuildHeader(corpus="science"))
        for start in range(0, 48, 8):
            yield index_pb2.BuildGenerationRequest(premises=PREMISES[start : start + 8])
        # The caller stays: rows must not wait until the encoders have no more room.
        await until(lambda: max(written, default=0) >= 24)

    admin = index.client._admin_channel
    async for report in admin.stream(index.client._admin.BuildGeneration, requests(), timeout_s=60):
        written.append(report.encoded)  # noqa: PERF401 -- the requests look at it meanwhile
    assert written[-1] == 48


def test_an_encoder_by_tls_may_lack_its_port_which_is_443_then_and_a_list_may_have_no_hole(tmp_path):
    ca = tmp_path / "ca.pem"
    ca.touch()
    assert IndexSettings(encoder_target="encoder.lab", peer_ca=ca).encoder_target == "encoder.lab"
    with pytest.raises(ValidationError, match="is not an address"):
        IndexSettings(encoder_target="encoder.lab")
    with pytest.raises(ValidationError, match="empty address"):
        IndexSettings(encoder_target="a:1,,b:1")
