"""`aeenc data`, `export` and `import`: data sets fetched and checked, what runs recorded as files, pairs from files.

Each file of a public data set is checked against the git blob id of a fixed commit.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import shlex
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from aeenc import Client, exports, values
from aeenc.cli.corpus import LAYOUTS
from aeenc.cli.output import output_of, table
from aeenc.cli.targets import client
from aeenc.errors import AeencError, AlreadyExists, DataLoss, InvalidArgument, Unavailable
from aeenc.evaluation import accessible_of, load_data
from aeenc.evaluation.faults import FAULTS, Fault, faults_of
from aeenc.files.whole import is_stdout, whole_file, whole_folder
from aeenc.trees import Dataset, Tree, draw, numbered, to_svg, tree_from_record, write_folds, write_trees

ENTAILMENTBANK = (
    "https://raw.githubusercontent.com/allenai/entailment_bank/daac2fdb7ab52ec3ef8f2953f59288c1edd7c2f0/"
    "data/public_dataset/entailment_trees_emnlp2021_data_v2"
)
# file -> git blob id at that commit
ENTAILMENTBANK_FILES = {
    "dataset/task_1/train.jsonl": "82335c340bac391c83015aef522e56ef40d6f263",
    "dataset/task_1/dev.jsonl": "d4a519c581b7d7737b75c0ceaa70c8365feb1233",
    "dataset/task_1/test.jsonl": "a0c64843ae49f789d74758bf143dcccf8dcf8ba5",
    "dataset/task_2/train.jsonl": "c508dea8c9256e7dfa78ce4c100177a815734839",
    "dataset/task_2/dev.jsonl": "fc909f2f155892e863ba0becfa03e243477c88f5",
    "dataset/task_2/test.jsonl": "f400415f8d5158882bf491351141b3372f8f90c1",
    "supporting_data/worldtree_corpus_sentences_extended.json": "120616a7a7f4b313eb5936ba5e8f84a3c039b18c",
}
FILE_BYTES = 64 * 1024 * 1024  # the largest file has about 6 MB
READ_TIMEOUT_S = 30.0


def blob_id(content: bytes) -> str:
    """Computes the id that git gives to a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def fetch_entailmentbank(
    folder: Path,
    *,
    url: str = ENTAILMENTBANK,
    files: dict[str, str] = ENTAILMENTBANK_FILES,
    on_progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Fetches EntailmentBank into `folder`, whole or not at all; returns False when it is there already.

    Raises Unavailable when a file cannot be fetched, DataLoss when one differs from the commit, AlreadyExists when
    `folder` holds something else.
    """
    if folder.exists() and any(folder.iterdir()):
        _check_there(folder, files)
        return False
    with whole_folder(folder) as temporary:
        for number, (name, expected) in enumerate(files.items(), start=1):
            content = _download(f"{url}/{name}")
            if blob_id(content) != expected:
                raise DataLoss(f"{url}/{name} is not the expected file (git blob {expected}); nothing was kept")
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if on_progress is not None:
                on_progress(number, len(files))
    return True


def _check_there(folder: Path, files: dict[str, str]) -> None:
    for name, expected in files.items():
        path = folder / name
        if not path.is_file() or blob_id(path.read_bytes()) != expected:
            raise AlreadyExists(
                f"{folder} exists and its {name} is not the expected file; remove it, or give another --to"
            )


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=READ_TIMEOUT_S) as response:  # noqa: S310 -- the caller's fixed https URL
            content: bytes = response.read(FILE_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url} cannot be fetched: {error}") from None
    if len(content) > FILE_BYTES:
        raise DataLoss(f"{url} is larger than {FILE_BYTES} bytes; nothing was kept")
    return content


def fetch(
    context: typer.Context,
    name: Annotated[Literal["entailmentbank"], typer.Argument(help="The data set.")],
    to: Annotated[Path | None, typer.Option(show_default="data/NAME", help="Where to put it.")] = None,
) -> None:
    """Downloads a public data set. Each file is checked; on a mismatch nothing is kept."""
    folder = to or Path("data") / name
    out = output_of(context)
    with out.progress(f"fetching {name}", "files") as report:
        fetched = fetch_entailmentbank(folder, on_progress=lambda done, total: report(done, total, ""))
    out.result({"name": name, "folder": str(folder), "files": len(ENTAILMENTBANK_FILES), "fetched": fetched})


def check(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory in EntailmentBank's or BEIR's layout.")],
    every: Annotated[bool, typer.Option("--all", help="Print every fault, not an example of each kind.")] = False,
) -> None:
    """Looks for faults of a data set that no figure shows, and for each line that cannot be read.

    Faults are queries of another split that are also in train, gold that the
    facts lack, candidates that differ at most in case, punctuation and articles,
    and ids of several trees, queries or documents. Prints how many there are of each kind
    and split, with an example. The exit code is 1 if a line cannot be read, a
    query of another split is in train, or the folder has no train split.
    """
    found = faults_of(directory)
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in sorted(found, key=lambda fault: list(FAULTS).index(fault.kind)):
        groups.setdefault((fault.kind, fault.split), []).append(fault)
    rows = [
        (FAULTS[kind], split, len(faults), fault.text, fault.other)
        for (kind, split), faults in groups.items()
        for fault in (faults if every else faults[:1])
    ]
    grave = sum(fault.is_grave for fault in found)
    shown = table(["fault", "split", "how many", "text", "other text"], rows) if rows else "no faults"
    output_of(context).result({"faults": [asdict(fault) for fault in found], "grave": grave}, shown)
    if grave:
        raise typer.Exit(1)


Runs = Annotated[list[str], typer.Argument(help="Runs; their pairs are joined.", metavar="RUN...")]
Run = Annotated[str | None, typer.Argument(help="A run; or give --data.", metavar="[RUN]", show_default=False)]
Data = Annotated[Path | None, typer.Option(help="Gold trees instead of a run: a directory in EntailmentBank's layout.")]
Split = Annotated[str, typer.Option(help="The split of --data, and of the qrels.")]
Form = Literal["jsonl", "text", "svg"]


def export_pairs(
    context: typer.Context,
    runs: Runs,
    to: Annotated[Path, typer.Option(help="The file; -: stdout.")],
    sign: Annotated[Literal["all", "positive", "negative", "skipped"], typer.Option(help="Which pairs.")] = "all",
    overruled: Annotated[bool, typer.Option("--overruled", help="Also those that were amended since.")] = False,
) -> None:
    """Writes the pairs of runs with all that is known of them, one JSON object a line.

    Of a verdict that was amended only the last word is written.
    """
    wanted = None if sign == "all" else values.PairSign[sign.upper()]
    connected = client(context)
    found = _pairs(connected, runs) if overruled else exports.last_words(_pairs(connected, runs))
    count = exports.write_pairs(to, (pair for pair in found if wanted is None or pair.sign == wanted))
    _report(context, to, {"pairs": count})


def export_triplets(
    context: typer.Context,
    runs: Runs,
    to: Annotated[Path, typer.Option(help="The file; -: stdout.")],
    per_query: Annotated[int, typer.Option(min=0, help="At most so many of a query, drawn; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="What is drawn.")] = 0,
) -> None:
    """Writes query, positive and negative triplets, one JSON object a line."""
    written = exports.write_triplets(to, _pairs(client(context), runs), per_query=per_query, seed=seed)
    _report(context, to, asdict(written))


def export_beir(
    context: typer.Context,
    to: Annotated[Path, typer.Option(help="The folder; it must not exist.")],
    run: Run = None,
    data: Annotated[Path | None, typer.Option(help=f"Gold or rated queries instead of a run. {LAYOUTS}")] = None,
    split: Split = "train",
    grades: Annotated[
        bool, typer.Option(help="Of a run: the oracle's grade as the score of what it accepted, in place of 1.")
    ] = False,
) -> None:
    """Writes corpus, queries and qrels in BEIR's layout: what a run has judged, gold trees say, or experts rated."""
    if data is not None and run is None:
        dataset = load_data(data)
        corpus = ((candidate.id, candidate.text) for candidate in dataset.candidates())
        written = exports.write_beir(
            to,
            corpus,
            exports.gold_judgements(dataset, split),
            split=split,
            accessible=accessible_of(dataset, split),
        )
    elif run is not None and data is None:
        connected = client(context)
        of = connected.sampler.get_run(run)
        premises = connected.index.list_premises(of.config.corpus, generation=of.generation)
        texts = ((premise.id, premise.text) for premise in premises)
        written = exports.write_pairs_as_beir(to, texts, _pairs(connected, [run]), split=split, grades=grades)
    else:
        raise InvalidArgument("give either a run or --data DIR")
    _report(context, to, asdict(written))


def export_trees(
    context: typer.Context,
    to: Annotated[Path, typer.Option(help="The file (-: stdout); for svg a folder, which must not exist.")],
    run: Run = None,
    data: Data = None,
    split: Split = "train",
    form: Annotated[Form, typer.Option("--as", help="How they are written.")] = "jsonl",
    only: Annotated[list[str] | None, typer.Option(help="Only the tree of this hypothesis id; repeatable.")] = None,
) -> None:
    """Writes trees: EntailmentBank's lines of JSON, text, or a picture (SVG) of each."""
    if data is not None and run is None:
        trees = Dataset.load(data).trees(split)
    elif run is not None and data is None:
        trees = [tree_from_record(json.loads(record)) for _, record in client(context).sampler.export_trees(run)]
    else:
        raise InvalidArgument("give either a run or --data DIR")
    chosen = [tree for tree in trees if not only or tree.id in only]
    if only and (unknown := sorted(set(only) - {tree.id for tree in chosen})):
        raise InvalidArgument(f"no tree was found for {', '.join(unknown)}; a run has none where nothing was accepted")
    _write(to, form, chosen)
    _report(context, to, {"trees": len(chosen)})


def export_folds(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="Directory in EntailmentBank's layout.")],
    to: Annotated[Path, typer.Option(help="A folder for the folds; it must not exist.")],
    split: Split = "train",
    folds: Annotated[int, typer.Option(min=2, help="How many.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    unseen: Annotated[
        bool,
        typer.Option("--unseen", help="Hold back trees with leaves that no other tree has; folds may share trees."),
    ] = False,
) -> None:
    """Writes directories that each hold back other trees of a split as split `held-out`, to tune without leakage.

    Trees that share a query stay together.
    """
    dataset = Dataset.load(data)
    with whole_folder(to) as folder:
        names = [
            path.name for path in write_folds(dataset, folder, split=split, number=folds, seed=seed, unseen=unseen)
        ]
    paths = {name: str((to / name).resolve()) for name in names}
    out = output_of(context)
    if out.as_json:
        out.result({"to": str(to), "folds": paths})
    else:
        setting = shlex.quote(json.dumps(paths))
        typer.echo(f"export AEENC_TRAINER_DATA_SETS={setting}")  # in one line: it is to be copied


def import_pairs(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Pairs as `aeenc export pairs` writes them; -: stdin.")],
    corpus: Annotated[str, typer.Option(help="The corpus that the premise ids belong to.")],
    run: Annotated[str | None, typer.Option(help="An earlier import to add to.  [default: a run of their own]")] = None,
) -> None:
    """Adds pairs that were judged elsewhere, to be trained on by `aeenc train --run`.

    Importing the same pairs again adds nothing and prints the same run. Of a
    verdict that the file amends, the last word is imported.
    """
    pairs = list(exports.last_words(exports.read_pairs(file)))  # reads the whole file before anything is stored
    if not pairs:
        raise InvalidArgument(f"{file}:1: holds no pairs; write one a line")
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(pair.to_message().SerializeToString(deterministic=True))
    request_id = f"file-{digest.hexdigest()[:32]}-{corpus}-{run or ''}"
    connected = client(context)
    answer = connected.sampler.import_pairs(corpus, pairs, run_id=run or "", request_id=request_id)
    output_of(context).result({"run": answer.run_id, "corpus": corpus, "pairs": len(pairs)})
    with suppress(AeencError):  # an import needs no index
        if corpus not in (one.corpus for one in connected.index.list_corpora()):
            output_of(context).note(f"the index has no corpus {corpus!r}; a job needs it, so look for a typing error")


def _report(context: typer.Context, to: Path, counts: dict[str, int]) -> None:
    """Says what was written, beside what was written to stdout."""
    if is_stdout(to):
        output_of(context).note(", ".join(f"{count} {name}" for name, count in counts.items()))
    else:
        output_of(context).result({"to": str(to), **counts})


def _pairs(connected: Client, runs: list[str]) -> Iterator[values.Pair]:
    for run in runs:
        yield from connected.sampler.list_pairs(run)


def _write(to: Path, form: Form, trees: list[Tree]) -> None:
    if form == "jsonl":
        write_trees(to, trees)
    elif form == "text":
        with whole_file(to) as file:
            file.write("".join(f"{draw(tree)}\n\n" for tree in trees))
    else:
        with whole_folder(to) as folder:
            plain = (re.sub(r"[^\w.-]", "_", tree.id).strip(".").encode()[:100] or b"tree" for tree in trees)
            names = numbered(name.decode(errors="ignore") for name in plain)
            for name, tree in zip(names, trees, strict=True):
                (folder / f"{name}.svg").write_text(to_svg(tree), encoding="utf-8")
