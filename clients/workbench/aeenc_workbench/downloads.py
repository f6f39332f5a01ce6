"""What a lead takes away of a run: trees, pairs, triplets and judgements as files, a tree as a picture.

The SDK writes them, in a thread and beside the answers of others; each download is a whole file or an error.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from aeenc import AsyncClient, values
from aeenc.errors import NotFound
from aeenc.exports.beir import write_pairs_as_beir
from aeenc.exports.judgements import write_triplets
from aeenc.exports.pairs import write_pairs
from aeenc.trees import to_svg, tree_from_record

Premises = Sequence[tuple[str, str]]
SVG_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


async def download(client: AsyncClient, run_id: str, form: str) -> Response:
    """The file of a run in one form: `trees`, `pairs`, `triplets`, `beir` (with TREC's qrels). Raises NotFound."""
    run = await client.sampler.get_run(run_id)
    if form not in _WRITERS:
        raise NotFound(f"no form {form!r}; there are {', '.join(_WRITERS)}")
    name, write = _WRITERS[form]
    folder = Path(tempfile.mkdtemp(prefix="aeenc-workbench-"))
    try:
        if form == "trees":
            lines = [f"{record}\n" async for _, record in client.sampler.export_trees(run_id)]
            await asyncio.to_thread((folder / name).write_text, "".join(lines), encoding="utf-8")
        else:
            pairs = [pair async for pair in client.sampler.list_pairs(run_id)]
            premises: Premises = ()
            if form == "beir":
                listed = client.index.list_premises(run.config.corpus, generation=run.generation)
                premises = [(premise.id, premise.text) async for premise in listed]
            await asyncio.to_thread(write, folder / name, pairs, premises)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    stem, _, suffix = name.partition(".")
    gone = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(folder / name, filename=f"{stem}-{run_id}.{suffix}", background=gone)


async def picture(client: AsyncClient, run_id: str, hypothesis_id: str) -> Response:
    """The tree of a hypothesis as SVG. Raises NotFound for a tree in which nothing was accepted."""
    async for found, record in client.sampler.export_trees(run_id):
        if found == hypothesis_id:
            drawn = to_svg(tree_from_record(json.loads(record)))
            return Response(drawn, media_type="image/svg+xml", headers=SVG_HEADERS)
    raise NotFound(f"nothing is accepted in the tree of hypothesis {hypothesis_id!r} of run {run_id}")


def _write_beir(path: Path, pairs: Sequence[values.Pair], premises: Premises) -> None:
    folder = path.with_suffix("")
    write_pairs_as_beir(folder, premises, pairs, split="judged")
    shutil.make_archive(str(folder), "zip", folder)


_WRITERS: dict[str, tuple[str, Callable[[Path, Sequence[values.Pair], Premises], object]]] = {
    "trees": ("trees.jsonl", lambda *_: None),
    "pairs": ("pairs.jsonl", lambda path, pairs, _: write_pairs(path, pairs)),
    "triplets": ("triplets.jsonl", lambda path, pairs, _: write_triplets(path, pairs)),
    "beir": ("beir.zip", _write_beir),
}
