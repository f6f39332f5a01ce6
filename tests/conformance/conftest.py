"""The servers that the suite runs against: an index on files, an index on Milvus, or any server that is given.

    AEENC_CONFORMANCE_TARGET   host:port of an index of yours; nothing else is tested then
    AEENC_CONFORMANCE_ENCODER  host:port of the encoder that it builds with (role premise and role query)
    AEENC_CONFORMANCE_TOKEN    bearer token of both, where they want one

The suite speaks gRPC through the SDK and knows nothing of the server but what it answers. It makes corpora with names
of its own and leaves them behind: take a server for tests.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from aeenc import AsyncClient
from support.subject import Subject
from support.waiting import until
from support.worlds.index_world import RunningEncoder

TARGET = os.environ.get("AEENC_CONFORMANCE_TARGET", "")
BACKENDS = ["given"] if TARGET else ["faiss", "milvus"]


@pytest_asyncio.fixture(params=BACKENDS, scope="module", loop_scope="module")
async def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """An index for all tests of a module, which must run in the loop of their module, and its encoder."""
    async with AsyncExitStack() as stack:
        if request.param == "given":
            token = os.environ.get("AEENC_CONFORMANCE_TOKEN")
            encoder = os.environ.get("AEENC_CONFORMANCE_ENCODER", "127.0.0.1:50051")
            client = await stack.enter_async_context(AsyncClient(index=TARGET, encoder=encoder, token=token))
            yield Subject(client, is_hashed=False)
            return
        encoder = await stack.enter_async_context(RunningEncoder())
        changes: dict[str, Any] = {"artifacts_dir": tmp_path_factory.mktemp("artifacts")}
        if request.param == "milvus":
            changes |= request.getfixturevalue("milvus").settings()
        from services.index.__main__ import build
        from services.index.settings import IndexSettings

        settings = IndexSettings(port=0, encoder_target=encoder.target, build_batch=8, **changes)
        running = await stack.enter_async_context(build(settings))
        await until(lambda: running.readiness.answers, timeout_s=20)
        client = AsyncClient(index=f"127.0.0.1:{running.port}", encoder=encoder.target)
        yield Subject(await stack.enter_async_context(client), is_hashed=True, encoder=encoder)
