"""bfloat16 on a CPU, by OpenVINO: where it is installed, refused by name where it is not, and never a must."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import numpy as np
import pytest

from aeenc import errors
from services.encoder.runtime.openvino_session import OpenvinoSession, bfloat16_refusal
from services.encoder.runtime.runners import PaddedRunner, Tokens
from services.store.artifacts import ArtifactStore
from services.store.registry import Registry
from support.models.tiny_checkpoints import DIM, TinyCheckpoint, register

needs_bfloat16 = pytest.mark.skipif(bool(bfloat16_refusal()), reason=bfloat16_refusal())
needs_openvino = pytest.mark.skipif(not find_spec("openvino"), reason="install the extra encoder-openvino")
TEXTS = [Tokens([2, *range(5, 5 + length), 3]) for length in (1, 3, 7, 12)]


ASKED = """
import sys
from services.encoder.runtime.openvino_session import bfloat16_refusal
bfloat16_refusal()
print("openvino" in sys.modules, sys.modules.get("openvino_telemetry"))
"""


@needs_openvino
def test_openvinos_telemetry_is_never_loaded() -> None:
    told = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["True", "None"]


async def test_bfloat16_asked_for_by_name_stops_the_start_without_openvino(serve, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(errors.FailedPrecondition, match=r"=bfloat16, but .*install the extra encoder-openvino"):
        async with serve(precision="bfloat16", wait=False):
            pass


async def test_without_openvino_float32_serves_and_says_what_could_not_be_measured(
    serve, registry: Registry, tiny_checkpoint: TinyCheckpoint, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    await register(registry, tiny_checkpoint, label="stable")
    async with serve() as (server, client):
        assert (await client.encode(["sun"])).precision == "float32"
        [shown] = (await client.info()).versions
        assert "install the extra encoder-openvino" in shown.precision_reason
        assert server.readiness.state == "SERVING"
        with pytest.raises(errors.FailedPrecondition, match="is not computed in bfloat16 here"):
            await client.encode(["sun"], precision="bfloat16")


@needs_bfloat16
async def test_queries_get_bfloat16_where_it_is_asked_for(
    serve, registry: Registry, tiny_checkpoint: TinyCheckpoint
) -> None:
    await register(registry, tiny_checkpoint, label="stable")
    async with serve(precision="bfloat16") as (_, client):
        default, exact = await client.encode(["sun"]), await client.encode(["sun"], precision="float32")
        assert (default.precision, exact.precision) == ("bfloat16", "float32")
        assert 0.999 <= np.einsum("nd,nd->n", default.vectors, exact.vectors)[0] < 1 - 1e-7
        assert (await client.encode(["sun"], role="premise")).precision == "float32"


@needs_bfloat16
def test_neighbours_do_not_change_a_vector_and_the_callers_thread_computes(
    artifact_store: ArtifactStore, tiny_checkpoint: TinyCheckpoint
) -> None:
    session = OpenvinoSession(tiny_checkpoint.artifact.file("model.onnx"), 1)
    runner = PaddedRunner(session, pad_id=0, dim=DIM)
    together = runner.run(TEXTS)
    alone = np.concatenate([runner.run([text]) for text in TEXTS])
    assert np.einsum("nd,nd->n", together, alone).min() >= 0.9999

    threads, own, whole = threading.active_count(), time.thread_time(), time.process_time()
    for _ in range(200):
        runner.run(TEXTS)
    own, whole = time.thread_time() - own, time.process_time() - whole
    assert own >= 0.8 * whole, "a thread of the runtime's own would keep the idle priority of the one that loaded it"
    assert threading.active_count() == threads


@needs_bfloat16
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"this is no model at all")
    with pytest.raises(errors.DataLoss, match=r"model\.onnx is refused by OpenVINO"):
        OpenvinoSession(tmp_path / "model.onnx", 1)
