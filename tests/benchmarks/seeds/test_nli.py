"""A trained version's cosines are measured in the space of its checkpoint, which is none of the encoder's default."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from aeenc.errors import VersionNotLoaded
from benchmarks.seeds.nli import Measured, ScoredPair

SPACES = {"q-base": "s-base", "q-trained": "s-trained"}
SIMILAR = [ScoredPair("a", "b", 1.0), ScoredPair("a", "c", 5.0), ScoredPair("b", "c", 3.0)]


class Encoder:
    """An encoder that looks for a version in the space that is named, or else in the default one, as the real does."""

    def encode(self, texts, *, version=None, space_id="", truncate=False):
        if version and SPACES[version] != (space_id or "s-base"):
            raise VersionNotLoaded(f"{version} is not loaded")
        angles = np.array([{"a": 0.0, "b": 2.0, "c": 0.5}[text] for text in texts])
        return SimpleNamespace(vectors=np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))


@pytest.mark.parametrize("version", [None, "q-base", "q-trained"])
def test_similarity_is_measured_by_what_serves_and_by_a_version_of_any_space(version):
    report = SimpleNamespace(strict=SimpleNamespace(map=0.5))
    trainer = SimpleNamespace(
        evaluate=lambda *_, **__: report, get_checkpoint=lambda name: SimpleNamespace(space_id=SPACES[name])
    )
    client = SimpleNamespace(trainer=trainer, encoder=Encoder())
    assert Measured(client, {"a": ["b"]}, 0, SIMILAR, 0.0).quality(version) == (0.5, pytest.approx(1.0))
