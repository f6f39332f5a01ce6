"""Baselines that run beside the services: sentence-transformers, bare onnxruntime, an empty gRPC call."""

from __future__ import annotations

import site
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort

from benchmarks.harness.checkpoints import session, sorted_batches, tokenizer_of
from benchmarks.harness.rows import ROOT, run
from tools.pinned_venv import PinnedVenv

PACKAGE = "sentence-transformers==6.2.0"
_SENTENCE_TRANSFORMERS = """
import sys, time, torch
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
print("ready", flush=True)
for line in sys.stdin:
    texts = [text for text in open(line.strip(), encoding="utf-8").read().split("\\n") if text]
    started = time.perf_counter()
    model.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False)
    print(len(texts) / (time.perf_counter() - started), flush=True)
"""


def library(folder: Path) -> Path:
    """The Python of an environment in `folder` with sentence-transformers, and for the rest with what this one has."""
    venv = PinnedVenv(folder)
    venv.create()
    venv.install("--no-deps", PACKAGE)
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "this.pth").write_text("\n".join(site.getsitepackages()))
    return venv.python


class SentenceTransformers:
    """sentence-transformers in a process of its own, so that torch's threads are gone while others are measured."""

    def __init__(self, directory: Path) -> None:
        self._folder = TemporaryDirectory()
        command = [str(library(Path(self._folder.name) / "venv")), "-c", _SENTENCE_TRANSFORMERS, str(directory)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def rate(self, texts_file: Path) -> float:
        """Texts a second of `encode` with batches of 32, tokenisation and its own length sort included."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{texts_file}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{PACKAGE} does not start")
        return line.strip()


class BareOnnxruntime:
    """A session over the same file in this process, in the three ways there are to use two cores."""

    def __init__(self, directory: Path, model: str = "model.onnx") -> None:
        path = directory / model
        self._tokenizer = tokenizer_of(directory)
        self.single = session(path)
        self._sessions = {"spinning": session(path, threads=2, spinning=True), "not spinning": session(path, threads=2)}

    def rates(self, texts: Sequence[str]) -> dict[str, float]:
        """Texts a second of each way: sorted batches of 32, tokenisation included."""
        rates = {name: self._rate(texts, one) for name, one in self._sessions.items()}
        rates["2 x 1 thread"] = self._rate(texts, self.single, threads=2)
        return rates

    def one(self, text: str) -> None:
        """Embeds one text."""
        ids = np.array([self._tokenizer.encode(text).ids])
        self.single.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})

    def _rate(self, texts: Sequence[str], one: ort.InferenceSession, *, threads: int = 1) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda feeds: one.run(["sentence_embedding"], feeds), self._batches(texts)))
        return len(texts) / (time.perf_counter() - started)

    def _batches(self, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        return (feeds for _, feeds in sorted_batches(ids))


class Echo:
    """An empty gRPC service in a process of its own: what a call costs that does nothing. Used by `async with`."""

    METHOD = "/bench.Echo/Call"

    def __init__(self, answer_bytes: int = 0) -> None:
        command = [sys.executable, "-c", f"from {__name__} import serve_echo; serve_echo({answer_bytes})"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.target = f"127.0.0.1:{self._process.stdout.readline().strip()}"

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def __aenter__(self) -> Echo:
        self._channel = grpc.aio.insecure_channel(self.target)
        self._call = self._channel.unary_unary(self.METHOD)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        self._process.terminate()
        self._process.wait()

    async def call(self) -> None:
        """Sends nothing and waits for nothing."""
        await self._call(b"")


def serve_echo(answer_bytes: int) -> None:
    """Prints the port of an empty service and answers every call with so many bytes; never returns."""
    content = bytes(answer_bytes)

    async def answer(_request: bytes, _context: Any) -> bytes:
        return content

    async def serve() -> None:
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Call": method}),))
        print(server.add_insecure_port("127.0.0.1:0"), flush=True)
        await server.start()
        await server.wait_for_termination()

    run(serve())
