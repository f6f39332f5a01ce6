"""Has a generation's vectors and words indexed by a process of its own (indexing.py) and waits for it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from aeenc import errors
from services.index.plan import EngineOptions, Plan
from services.index.vectors import VectorFile
from services.kit import logs

log = logs.get(__name__)

MODULE = "services.index.indexing"


async def index_generation(path: Path, options: EngineOptions, vectors: VectorFile) -> dict[str, Any]:
    """Indexes the finished vectors and premises in the directory `path`; returns what the manifest says of the engine.

    With the engine flat there is nothing that takes minutes, and it does nothing, for words neither. Cancelled, it ends
    the process. Raises Unavailable when the process dies, OSError when the disk is full.
    """
    engine = options.choose(vectors.rows)
    if engine == "flat":
        return {"engine": engine}
    request = {
        "path": str(path),
        "engine": engine,
        "recall": options.recall,
        "largest_norm": vectors.largest_norm,
        "threads": options.threads,
    }
    started = time.monotonic()
    process = await asyncio.to_thread(_start, options.threads)
    answer = asyncio.ensure_future(asyncio.to_thread(_ask, process, request))
    try:
        plan = await asyncio.shield(answer)
    finally:
        process.kill()  # it has ended, or nobody wants its answer
        await asyncio.wait([answer])
        answer.exception()  # seen, also when the build was cancelled
    elapsed_s = round(time.monotonic() - started, 1)
    log.info("indexed", premises=vectors.rows, elapsed_s=elapsed_s, **plan.to_meta())
    if plan.recall_at_10 < plan.recall_wanted:
        log.warning("recall is below what is wanted", found=plan.recall_at_10, wanted=plan.recall_wanted)
    return {"engine": engine, "index": plan.to_meta()}


def _start(threads: int) -> subprocess.Popen[bytes]:
    own = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait leave the core to others
    pipe = subprocess.PIPE  # by vfork, as the trainer starts its children (docs/experiments.md)
    command = [sys.executable, "-m", MODULE]
    # unbuffered: what a process that died could not be sent would be sent again when its pipe is closed
    return subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **own})


def _ask(process: subprocess.Popen[bytes], request: dict[str, Any]) -> Plan:
    """Sends the request and reads the answer. Standard input stays open meanwhile: it is the process's lifeline."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdin, process.stdout, process.stderr:
        with suppress(BrokenPipeError):  # it died early; its status says so
            process.stdin.write(json.dumps(request).encode() + b"\n")
        said = process.stderr.read().decode(errors="replace").strip()
        answer = process.stdout.read()
        status = process.wait()
    if status == 0:
        return Plan(**json.loads(answer))
    if os.strerror(errno.ENOSPC) in said:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    died = f"was killed by signal {-status} (out of memory?)" if status < 0 else f"ended with status {status}"
    log.warning("indexing failed", status=status, said=said)
    raise errors.Unavailable(
        f"the process that indexes {died}; build again, or with the engine flat: with the same request_id it goes on "
        "behind what was durable, without one nothing of it is left"
    )
