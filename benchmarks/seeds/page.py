"""docs/results/seeds.md: what `make textgraphs`, `make nli` and `make analogy` last measured, beside the seeds' papers.

A table is one run of one command, kept in docs/results/seeds/NAME.json; the page is made of all of them and no more.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.rows import KEPT, ROOT, surroundings

RESULTS = KEPT
SAMPLE = ROOT / "data" / "sample"
_HEAD = """# The seeds' own tasks

Each table is one run of the command below it, which writes it. A *sample* is a few lines in the layout of the real
data: its figures show that the command runs, and nothing else. Measures:
[evaluation.md](../evaluation.md), losses: [training.md](../training.md). The papers:

- `textgraphs`: Kalyan, Witteveen, Andrews 2021, Red Dragon AI at TextGraphs 2021 shared task (arXiv 2107.13031)
- `nli`: Reimers and Gurevych 2019, Sentence-BERT (EMNLP), and the page on NLI in the sentence-transformers manual
- `analogy`: Diallo et al. 2019, Learning analogy-preserving sentence embeddings for answer selection (CoNLL)
"""


def keep_table(
    command: str, data: Path, about: str, columns: Sequence[str], rows: Sequence[Sequence[str | float]], name: str = ""
) -> None:
    """Prints a table, keeps it as that of the command and its data, and writes the page anew.

    One of another command line stays: a run over fewer queries, or over a sample, must not take its place. A table of a
    sample gives way to one of real data.

    `name` tells it from other tables of the same data. The command line is that of this process, data first.
    """
    data, of, given = data.resolve(), Path((sys.argv[1:] or [str(data)])[0]).resolve(), sys.argv[2:]
    shown = of.relative_to(ROOT) if of.is_relative_to(ROOT) else Path("DIR") / of.name
    title = f"{command} {data.name} {name}".strip()
    record = {
        "format_version": 1,
        "title": title,
        "sample": data.is_relative_to(SAMPLE),
        "command": f"make {command} DATA={shown}" + (f" ARGS={shlex.quote(shlex.join(given))}" if given else ""),
        "about": about,
        "columns": columns,
        "rows": [[one if isinstance(one, str) else round(float(one), 4) for one in row] for row in rows],
        **surroundings(),
    }
    print("\n" + _section(record), flush=True)
    folder = RESULTS / "seeds"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{'-'.join(title.split())}.json"
    kept = json.loads(path.read_bytes()) if path.exists() else record
    gives_way = kept["sample"] and not record["sample"]
    if kept["command"] != record["command"] and not gives_way:
        print(f"not kept: {path} is of `{kept['command']}`; remove it to keep this table instead")
        return
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    records = [json.loads(one.read_bytes()) for one in sorted(folder.glob("*.json"))]
    folder.with_suffix(".md").write_text("\n".join([_HEAD, *map(_section, records)]))


def _section(record: Mapping[str, Any]) -> str:
    rows = [[one if isinstance(one, str) else f"{one:.4f}" for one in row] for row in record["rows"]]
    widths = [max(map(len, column)) for column in zip(record["columns"], *rows, strict=True)]
    lines = [[one.ljust(width) for one, width in zip(row, widths, strict=True)] for row in (record["columns"], *rows)]
    lines.insert(1, ["-" * width for width in widths])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    where = f"{record['day']}, commit {record['commit']}, torch {record['torch']}, {record['processor']}"
    sample = " (sample)" if record["sample"] else ""
    return f"## {record['title']}{sample}\n\n{record['about']}\n\n{table}\n\n    {record['command']}\n\n{where}\n"
