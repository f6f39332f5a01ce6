"""Calls whose answers are compared with what the version they name must give: wrong and mixed answers are seen."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aeenc import EncoderClient, errors
from benchmarks.harness.checkpoints import vectors_of
from benchmarks.harness.load import Calls
from services.store.artifacts import Artifact

SAME = 0.99999
DIFFERENT = 0.9999  # versions must be further apart than this to be told apart


class Watched:
    """Sends texts of a pool one a call; `calls` has what became of them, `wrong` the answers that fit no version."""

    def __init__(self, clients: Sequence[EncoderClient], texts: Sequence[str], artifacts: Sequence[Artifact]) -> None:
        self._clients, self._texts = clients, texts
        self._expected = {artifact.id: vectors_of(artifact.path, list(texts)) for artifact in artifacts}
        self._rng = random.Random(11)
        self._count = 0
        self.calls = Calls()
        self.wrong = 0
        self.first_seen: dict[str, float] = {}  # version -> when an answer named it after `forget`
        self._check_apart()

    async def send(self) -> None:
        """One call."""
        self._count += 1
        client = self._clients[self._count % len(self._clients)]
        row = self._rng.randrange(len(self._texts))
        sent = time.monotonic()
        try:
            answer = await client.encode([self._texts[row]], timeout_s=10)
        except errors.AeencError as error:
            self.calls.add(sent, error.code, 1)
            return
        self.calls.add(sent, "OK", 1)
        self.first_seen.setdefault(answer.model_version, time.monotonic())
        expected = self._expected.get(answer.model_version)
        if expected is None or float(answer.vectors[0] @ expected[row]) < SAME:
            self.wrong += 1

    def forget(self, version: str) -> None:
        """Notices again when a version is first seen."""
        self.first_seen.pop(version, None)

    def _check_apart(self) -> None:
        all_vectors: list[NDArray[np.float32]] = list(self._expected.values())
        for number, ours in enumerate(all_vectors):
            for theirs in all_vectors[number + 1 :]:
                assert np.einsum("nd,nd->n", ours, theirs).max() < DIFFERENT, "variants cannot be told apart"
