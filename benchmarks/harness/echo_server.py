"""The empty service of `Echo`: prints its port and answers anything with as many bytes as its argument says."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop

ANSWER = bytes(int(sys.argv[1]))


async def _answer(_request: bytes, _context: Any) -> bytes:
    return ANSWER


async def _serve() -> None:
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("bench.Echo", {"Call": grpc.unary_unary_rpc_method_handler(_answer)})
    server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
