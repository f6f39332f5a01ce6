"""Makes what a user loads instead of training: `make bench NAME=shipped`, then tries it as that user.

    jobs of row `ours-ordered-reranked` ─▶ dist/models/VERSION: each checkpoint with its card, and hashes of both
    web server of this machine ─▶ `aeenc model pull` into an empty home ─▶ publish ─▶ retrieve, and MAP there

Epochs and weights are those of that row of Table 1, the seed is its first. The card names data with licences, recipe,
commit, the options of Retrieve, and MAP. To release the models, copy these two directories to a web server before
`make release`, which empties dist.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.harness.entailmentbank import entailmentbank, need_split
from benchmarks.harness.rows import ROOT, Rows, surroundings
from benchmarks.tables.research import VALIDATION, Research, research
from benchmarks.tables.table_rows import ORDERED_RERANKED, OURS, RERANKER, scorer_of, whole_of
from services.local.pulling import CARD, FOLDER
from services.store.artifacts import MANIFEST
from services.store.files import sha256_of

TO = ROOT / "dist" / "models"
SEED = 0
DATA = [
    {"name": "EntailmentBank (Dalvi et al. 2021)", "licence": "CC BY 4.0"},
    {"name": "WorldTree V2.1 (Xie et al. 2020)", "licence": "CC BY-SA 3.0"},
]
BASE = {"name": "sentence-transformers/all-MiniLM-L6-v2", "licence": "Apache-2.0"}
QUERY = "a magnet attracts an iron nail"
MOST_S, MOST_APART = 60.0, 0.001


def serve(fleet: Research, encoder: str, scorer: str) -> None:
    """Has a fleet retrieve with both versions."""
    fleet.publish(scorer)
    fleet.serve(encoder)


def strict_map(fleet: Research) -> float:
    """Strict MAP of the validation split with what a fleet serves."""
    return float(fleet.evaluate(VALIDATION, retrieval=ORDERED_RERANKED, strict_only=True)["strict"]["MAP"])


def release(store: Path, version: str, card: dict[str, Any]) -> Path:
    """Copies a checkpoint to where it is released, with its card."""
    to = TO / version
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(store / FOLDER / version, to)
    (to / CARD).write_text(json.dumps(card, indent=1) + "\n")
    return to


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a web server of this machine that has a directory."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def pull(source: str, sha256: str, store: Path) -> None:
    """Calls `aeenc model pull`, as a user does."""
    program = Path(sys.executable).with_name("aeenc")
    subprocess.run(
        [program, "model", "pull", source, "--sha256", sha256, "--artifacts", store],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    """Trains what is missing, writes the release, and uses it from an empty home."""
    need_split(entailmentbank(), VALIDATION)
    rows = Rows("shipped")
    with research() as made:
        encoder, scorer = whole_of(made, SEED), scorer_of(made, SEED)
        serve(made, encoder, scorer)
        here = strict_map(made)
        told = {"data": DATA, "base_model": BASE, "made": surroundings(), f"strict MAP, {VALIDATION}": round(here, 4)}
        recipes = {encoder: {**OURS, "validation": [], "seed": SEED}, scorer: {**RERANKER, "seed": SEED}}
        for version, recipe in recipes.items():
            card = {**told, "recipe": recipe, "retrieval": asdict(ORDERED_RERANKED)}
            path = release(made.home / "artifacts", version, card)
            size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
            rows.note(f"{path.relative_to(ROOT)}, manifest {sha256_of(path / MANIFEST)}", size, "MB")

    with served(TO) as address, tempfile.TemporaryDirectory() as name:
        started = time.monotonic()
        with research(home=Path(name) / "home") as there:
            rows.note("empty home: services up, facts encoded and built", time.monotonic() - started, "s")
            began = time.monotonic()
            for version in (encoder, scorer):
                pull(f"{address}/{version}", sha256_of(TO / version / MANIFEST), there.home / "artifacts")
            serve(there, encoder, scorer)
            untold = replace(ORDERED_RERANKED, prior=0.0)  # an empty home has no explanations for the prior
            [found] = there.client.index.retrieve(there.corpus, [QUERY], k=5, retrieval=untold)
            print("\n".join(f"  {hit.score:.3f}  {hit.text}" for hit in found))
            rows.note("both pulled and published, retrieved with", time.monotonic() - began, "s")
            rows.at_most("from the empty home to that answer", time.monotonic() - started, "s", MOST_S)
            apart = abs(strict_map(there) - here)
            rows.at_most(f"strict MAP of {VALIDATION} there, beside {here:.4f} here", apart, "", MOST_APART)
    rows.finish()


if __name__ == "__main__":
    main()
