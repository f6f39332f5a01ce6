"""AeencEncoder: what code written for sentence-transformers gets, and what it is refused."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aeenc import AeencEncoder, errors
from aeenc.v1 import encoder_pb2, encoder_pb2_grpc
from support.worlds.index_world import DIM, HashedEncoder, vector_of
from support.worlds.sampler_world import serving

DOCS = Path(__file__).parents[3] / "docs" / "integrations.md"
TEXTS = [f"fact {n}" for n in range(10)]


class Encoder(HashedEncoder):
    async def GetInfo(self, request: Any, context: Any) -> Any:
        return encoder_pb2.EncoderServiceGetInfoResponse(dim=DIM)


@pytest.fixture
def servicer() -> Encoder:
    return Encoder()


@pytest.fixture
async def target(servicer: Encoder) -> AsyncIterator[str]:
    async with serving(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
async def encoder(target: str) -> AsyncIterator[AeencEncoder]:
    made = AeencEncoder(encoder=target)
    yield made
    await asyncio.to_thread(made.close)


async def encode(encoder: AeencEncoder, *arguments: Any, **options: Any) -> Any:
    return await asyncio.to_thread(encoder.encode, *arguments, **options)


async def test_a_list_is_a_matrix_and_one_string_a_vector_also_by_options_that_change_nothing(encoder: AeencEncoder):
    matrix = await encode(encoder, TEXTS, normalize_embeddings=True)
    assert (matrix.shape, matrix.dtype) == ((10, DIM), np.float32)
    assert np.allclose(np.linalg.norm(matrix, axis=1), 1)
    assert np.array_equal(await encode(encoder, TEXTS[3]), matrix[3])
    idle = {"show_progress_bar": True, "convert_to_tensor": False, "device": None, "precision": "float32"}
    assert np.array_equal(await encode(encoder, TEXTS, output_value="sentence_embedding", **idle), matrix)
    assert np.array_equal(await encode(encoder, np.array(TEXTS), convert_to_numpy=True), matrix)
    assert (await encode(encoder, [])).shape == (0, DIM)
    assert await asyncio.to_thread(encoder.get_sentence_embedding_dimension) == DIM


async def test_many_sentences_go_in_batches_and_come_back_in_order(encoder: AeencEncoder, servicer: Encoder):
    matrix = await encode(encoder, TEXTS, batch_size=3)
    assert sorted(len(request.texts) for request in servicer.requests) == [1, 3, 3, 3]
    assert {request.lane for request in servicer.requests} == {encoder_pb2.LANE_BULK}
    assert np.array_equal(matrix, np.stack([vector_of(text, encoder_pb2.ROLE_QUERY) for text in TEXTS]))


async def test_the_prompts_name_is_the_role_and_a_version_is_asked_for_queries_alone(
    encoder: AeencEncoder, servicer: Encoder, target: str
):
    for name in ("query", "document", "passage", "premise", None):
        await encode(encoder, TEXTS, prompt_name=name)
    await asyncio.to_thread(encoder.encode_query, TEXTS)
    await asyncio.to_thread(encoder.encode_document, TEXTS)
    await asyncio.to_thread(AeencEncoder(encoder=target, role="premise").encode, TEXTS)
    query, premise = encoder_pb2.ROLE_QUERY, encoder_pb2.ROLE_PREMISE
    roles = [request.role for request in servicer.requests]
    assert roles == [query, premise, premise, premise, query, query, premise, premise]
    for name in (None, "document"):
        await encode(AeencEncoder(encoder=target, version="q7"), TEXTS, prompt_name=name)
    assert [request.model.version for request in servicer.requests] == [""] * 8 + ["q7", ""]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"convert_to_tensor": True}, "convert_to_tensor: is True, which AeencEncoder cannot do: .*torch.from_numpy"),
        ({"convert_to_tensor": 0}, "convert_to_tensor: is 0"),
        ({"convert_to_numpy": False}, r"convert_to_numpy: is False, .*list\(…\) makes a list"),
        ({"device": "cuda"}, "device: is 'cuda'"),
        ({"output_value": "token_embeddings"}, "output_value: is 'token_embeddings'"),
        ({"precision": "int8"}, "precision: is 'int8'"),
        ({"prompt": "query: "}, "prompt: is 'query: '.*prefixes of its own"),
        ({"truncate_dim": 8}, "truncate_dim: is 8"),
        ({"pool": {}}, "pool: is {}"),
        ({"batch": 8}, "batch: is not an option"),
        ({"batch_size": 0}, "batch_size: is 0"),
        ({"batch_size": "8"}, "batch_size: is '8'"),
        ({"prompt_name": ["query"]}, r"prompt_name: is \['query'\]; give one of query"),
        ({"prompt_name": "sts"}, "prompt_name: is 'sts'; give one of query, premise, document, passage"),
    ],
)
async def test_what_a_remote_model_cannot_do_is_refused_by_name(
    encoder: AeencEncoder, servicer: Encoder, options: dict[str, Any], words: str
):
    with pytest.raises(errors.InvalidArgument, match=words):
        await encode(encoder, TEXTS, **options)
    assert not servicer.requests
    with pytest.raises(errors.InvalidArgument, match=r"^role: is 'sts'; give one of query"):
        AeencEncoder(role="sts")  # type: ignore[arg-type]


async def test_code_written_for_sentence_transformers_runs(encoder: AeencEncoder, servicer: Encoder):
    def code() -> Any:
        queries = encoder.encode(TEXTS[:2], "query")
        return encoder.similarity(queries, encoder.encode(TEXTS, "document")), encoder.similarity(queries[0], queries)

    many, single = await asyncio.to_thread(code)
    assert (many.shape, single.shape) == ((2, 10), (1, 2))
    assert single[0, 0] == pytest.approx(1.0)
    assert encoder.similarity(np.array([3.0, 0.0]), np.array([[0.0, 2.0], [4.0, 0.0]])).tolist() == [[0.0, 1.0]]
    for wrong, told in (
        ((TEXTS, 32), "prompt_name: is 32; give one of query"),
        ((["a", 1],), r"sentences\[1\]: is int; give strings"),
        ((None,), "sentences: is None; give a list"),
    ):
        with pytest.raises(errors.InvalidArgument, match=told):
            await encode(encoder, *wrong)


async def test_the_example_of_the_page_runs(target: str, tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    [example] = [block for block in blocks if "AeencEncoder" in block]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", example),
        cwd=tmp_path,
        env={**os.environ, "AEENC_ENCODER": target},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    assert output.startswith(b"[[")
