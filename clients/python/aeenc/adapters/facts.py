"""Files of facts as premises, for `IndexClient.build` and `aeenc corpus build`, read as a stream.

Errors name file and line.

    *.txt, no suffix    one fact a line
    *.jsonl, *.ndjson   one object a line
    *.csv, *.tsv        a line with the names of the columns, then one record a fact; csv may be with ; | or tabs
    *.json              a list of objects or of texts, or one object from id to text; read whole
    *.parquet           or a directory of such files; needs pyarrow
    directory           a dataset that Hugging Face's `save_to_disk` has written; needs pyarrow
    -                   standard input: lines of text, or what --format says; read once, as any pipe is

The column of the facts is the first of TEXTS that is there, that of the ids the first of IDS. Those of the splits and
of the tags are the first of SPLITS and of TAGS: a list, or one name; of tags also names with commas between them. A
fact without an id gets one from its text, so that the same fact has the same id in every file. Facts repeated under
their id are left out.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from aeenc import values
from aeenc.errors import FailedPrecondition, InvalidArgument, install
from aeenc.files.lines import STDIN, decoded, json_file, opened, parsed, records, refuse_half, text_lines
from aeenc.trees import content_id

Format = Literal["txt", "jsonl", "csv", "tsv", "json", "parquet", "arrow"]
TEXTS = ("text", "fact", "premise", "sentence", "passage", "content")
IDS = ("id", "_id", "uid", "premise_id", "doc_id")
SPLITS = ("splits", "split")
TAGS = ("tags", "tag")
HUGGING_FACE = "state.json"  # names the files of a dataset that was saved to disk
ID_REUSED = "for two texts, or with two sets of splits or tags; give each text its own id and one row"
_SUFFIXES: dict[str, Format] = {f".{name}": name for name in get_args(Format)} | {".ndjson": "jsonl", "": "txt"}
_DELIMITERS = {"csv": ",;\t|", "tsv": "\t"}  # that of which the first line has most
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_PACKED = {".gz", ".zip", ".bz2", ".xz", ".zst"}
BATCH_ROWS = 4096

Record = tuple[str, dict[str, Any]]  # where it stands, and its columns
UsedColumns = tuple[str, str, str, str]  # the columns of text, id, splits and tags; "" for none


@dataclass(frozen=True)
class Part:
    """A part of a file: the lines that begin from byte `start` to `end`, or row groups of Parquet by number."""

    start: int
    end: int


@dataclass(frozen=True)
class Facts:
    """The facts of a file or directory, read anew at each pass. A column that is "" is the first known one."""

    path: Path
    format: Format
    id_column: str = ""
    text_column: str = ""
    part: Part | None = None  # of one file; else all of it

    def __iter__(self) -> Iterator[values.Premise]:
        """Yields the facts in order. Raises InvalidArgument naming file and line."""
        contents: dict[bytes, bytes] = {}  # by id, both as digests: the facts themselves may be too many
        for place, fact in self.lines():
            key, digest = id_digest(fact), content_digest(fact)
            if key not in contents:
                contents[key] = digest
                yield fact
            elif contents[key] != digest:
                raise InvalidArgument(f"{place}: the id {fact.id!r} is used twice, {ID_REUSED}")
        if not contents:
            raise InvalidArgument(f"{self.path}:1: holds no texts; write one a line")

    def lines(self) -> Iterator[tuple[str, values.Premise]]:
        """Yields each fact, repeated or not, and its place. Raises InvalidArgument naming file and line."""
        for place, columns in self._records():
            yield place, self._fact(place, columns)

    def parts(self, size_bytes: int) -> Iterator[Facts]:
        """Cuts the facts into parts of about so many bytes, in order: lines, row groups of Parquet, else files."""
        for file in _files_of(self.path, self.format):
            whole = replace(self, path=file)
            if self.format in {"txt", "jsonl"}:
                size = file.stat().st_size
                cuts = [*range(0, size, size_bytes), size]
            elif self.format == "parquet":
                cuts = _row_groups(file, size_bytes)
            else:
                cuts = []
            if len(cuts) < 3:
                yield whole
            else:
                yield from (replace(whole, part=Part(*part)) for part in pairwise(cuts))

    def _records(self) -> Iterator[Record]:
        match self.format:
            case "txt":
                return ((place, {"text": line.strip()}) for place, line in _full_lines(self.path, self.part))
            case "jsonl":
                lines = _full_lines(self.path, self.part)
                return ((place, _columns(place, parsed(place, line))) for place, line in lines)
            case "json":
                return _listed(self.path)
            case "csv" | "tsv":
                return _separated(self.path, _DELIMITERS[self.format], self._header)
            case "parquet" | "arrow":
                return _tables(self.path, self.format, self.part, self._header)

    def _header(self, place: str, names: Sequence[str]) -> UsedColumns:
        """Chooses among the columns of a table. Raises InvalidArgument for one that is there twice."""
        used = self._used(place, names)
        for name in used:
            if name and names.count(name) > 1:
                raise InvalidArgument(f"{place}: the column `{name}` is there twice; rename one, or leave it out")
        return used

    def _used(self, place: str, columns: Collection[str]) -> UsedColumns:
        """Finds the columns to read. Raises InvalidArgument when the texts or a named column are missing."""
        text = self.text_column or next((name for name in TEXTS if name in columns), TEXTS[0])
        fact_id = self.id_column or next((name for name in IDS if name in columns), "")
        for name, option in ((text, "--text-column"), (fact_id, "--id-column")):
            if name and name not in columns:
                there = ", ".join(map(str, columns)) or "nothing"
                raise InvalidArgument(f"{place}: `{name}` must be there; it has {there}: choose by {option}")
        splits, tags = (next((name for name in names if name in columns), "") for names in (SPLITS, TAGS))
        return text, fact_id, splits, tags

    def _fact(self, place: str, columns: dict[str, Any]) -> values.Premise:
        """Makes a fact of a record."""
        text_name, id_name, splits_name, tags_name = self._used(place, columns)
        text = columns[text_name]
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgument(f"{place}: `{text_name}` must be a string that is not empty")
        refuse_half(f"{place}: `{text_name}`", text)
        splits = _names(f"{place}: `{splits_name}`", columns[splits_name] if splits_name else None)
        tags = columns[tags_name] if tags_name else None
        tags = _names(f"{place}: `{tags_name}`", tags.split(",") if isinstance(tags, str) and tags.strip() else tags)
        if not id_name:
            return values.Premise(id=content_id(text), text=text, splits=splits, tags=tags)
        fact_id = columns[id_name]
        if isinstance(fact_id, int) and not isinstance(fact_id, bool):
            fact_id = str(fact_id)
        if not isinstance(fact_id, str) or not fact_id:
            raise InvalidArgument(f"{place}: `{id_name}` must be a string that is not empty, or an integer")
        refuse_half(f"{place}: `{id_name}`", fact_id)
        return values.Premise(id=fact_id, text=text, splits=splits, tags=tags)


def id_digest(fact: values.Premise) -> bytes:
    """Hashes a fact's id into 16 bytes."""
    return _digest(fact.id)


def content_digest(fact: values.Premise) -> bytes:
    """Hashes a fact's text, splits and tags into 16 bytes; two facts with one id must agree in them."""
    return _digest(json.dumps([fact.text, sorted(fact.splits), sorted(fact.tags)]))


def path_of(text: str) -> Path:
    """The path of a source: of this machine, or of an object store by its URL (s3://…), which needs universal-pathlib.

    Raises FailedPrecondition where that or the store's own package is not installed.
    """
    if "://" not in text:
        return Path(text)
    try:
        from fsspec import get_filesystem_class
        from upath import UPath

        found = UPath(text)
        get_filesystem_class(found.protocol)  # else the store's package would be missed at the first byte
        return cast("Path", found)  # it does what a path does
    except (ImportError, ValueError) as error:
        remedy = f"{install('corpus')}, and the package of your store (s3fs, gcsfs, adlfs)"
        raise FailedPrecondition(f"{text} cannot be read ({error}); {remedy}") from None


def read_facts(
    path: Path, *, file_format: Format | None = None, id_column: str = "", text_column: str = ""
) -> Iterable[values.Premise]:
    """Opens a source of facts; standard input and pipes can be gone through once, all others again and again.

    Raises InvalidArgument for one that cannot be read; what is malformed inside is raised when it is reached.
    """
    kind = file_format or ("txt" if path == STDIN else _format_of(path))
    once = path == STDIN or path.is_fifo() or path.is_char_device()
    if once and kind in {"parquet", "arrow"}:
        raise InvalidArgument(f"{path}: a pipe cannot be {kind}; give a file")
    as_directory = kind == "parquet" or (kind == "arrow" and (path / HUGGING_FACE).is_file())
    if not once and not as_directory and path.is_dir():
        known = f"it may hold *.parquet, or a dataset saved to disk ({HUGGING_FACE})"
        raise InvalidArgument(f"{path}: a directory cannot be {kind}; {known}")
    if kind == "txt" and (id_column or text_column):
        remedy = "leave --id-column and --text-column out, or add --format jsonl or csv"
        raise InvalidArgument(f"{path}: lines of text have no columns; {remedy}")
    found = Facts(path, kind, id_column, text_column)
    return iter(found) if once else found


def _format_of(path: Path) -> Format:
    if not path.is_dir():
        suffix = path.suffix.lower()
        if suffix in _PACKED:
            raise InvalidArgument(f"{path}: files named {suffix} are packed; unpack it first, or pipe it into -")
        if suffix not in _SUFFIXES:
            known = ", ".join(get_args(Format))
            raise InvalidArgument(f"{path}: files named {suffix} are of no known format; name it by --format: {known}")
        return _SUFFIXES[suffix]
    if (path / HUGGING_FACE).is_file():
        return "arrow"
    if (path / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(state.parent.name for state in path.glob(f"*/{HUGGING_FACE}")))
        raise InvalidArgument(f"{path}: holds several splits ({splits}); give the directory of one")
    return "parquet"


def _full_lines(path: Path, part: Part | None) -> Iterator[tuple[str, str]]:
    """Yields place and text of each line that is not blank, as `text_lines` does.

    A part's lines are named by the byte where they begin.
    """
    with opened(path) as file:
        for number, (start, line) in enumerate(_raw_lines(file, part), start=1):
            place = f"{path}: byte {start:,}" if part and part.start else f"{path}:{number}"
            text = decoded(place, line, first=not start)
            if text.strip():
                yield place, text


def _raw_lines(file: BinaryIO, part: Part | None) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that begin in a part, each with the byte where it begins."""
    start = 0
    if part is not None and part.start:
        file.seek(part.start - 1)
        start = part.start - 1 + len(file.readline())  # the rest of a line that began before
    while (part is None or start < part.end) and (line := file.readline()):
        yield start, line
        start += len(line)


def _columns(place: str, item: object) -> dict[str, Any]:
    """Returns the columns of an object, or of a bare text."""
    if isinstance(item, dict):
        return item
    if not isinstance(item, str):
        raise InvalidArgument(f"{place}: `text` must be a string that is not empty")
    return {"text": item}


def _names(place: str, found: object) -> tuple[str, ...]:
    """Returns the splits or tags of a record: a list, or one name; none where the column is missing or blank."""
    if found is None or (isinstance(found, str) and not found.strip()):
        return ()
    names = [found] if isinstance(found, str) else found
    if not isinstance(names, list) or not all(isinstance(one, str) and one.strip() for one in names):
        remedy = "rename the column, or leave it out, if it means something else"
        raise InvalidArgument(f"{place} must be a name or a list of names; {remedy}")
    for one in names:
        refuse_half(place, one)
    return tuple(dict.fromkeys(one.strip() for one in names))


def _listed(path: Path) -> Iterator[Record]:
    listed = json_file(path)
    if isinstance(listed, dict):
        listed = [{"id": fact_id, "text": text} for fact_id, text in listed.items()]
    if not isinstance(listed, list):
        raise InvalidArgument(f"{path}:1: must be a list of objects with `id` and `text`, or an object id to text")
    for number, item in enumerate(listed, start=1):
        place = f"{path}: fact {number}"
        yield place, _columns(place, item)


def _separated(path: Path, delimiters: str, header: Callable[[str, Sequence[str]], UsedColumns]) -> Iterator[Record]:
    """Reads a file with separated columns. A record over several lines is named by its first.

    Columns with tabs alone have no quotes (IANA's text/tab-separated-values), so no record is longer than a line; a
    cell that stands in quotes as a whole loses them.
    """
    lines = (line for _, line in text_lines(path))
    first = next(lines, "")
    bare = re.sub(r'"[^"]*"', "", first)
    has_quotes = delimiters != "\t"
    dialect = {
        "delimiter": max(delimiters, key=bare.count),
        "quoting": csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE,
        "strict": True,
    }
    names: Sequence[str] = ()
    for place, cells in records(path, chain([first], lines), **dialect):
        row = cells if has_quotes else list(map(_unquoted, cells))
        if not names:
            names = [name.strip() for name in row]
            if names:
                header(place, names)
        elif row and len(row) != len(names):
            raise InvalidArgument(f"{place}: has {len(row)} columns, the first line {len(names)}; quote the text")
        elif row:
            yield place, dict(zip(names, row, strict=True))


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell


def _tables(
    path: Path, kind: Format, part: Part | None, header: Callable[[str, Sequence[str]], UsedColumns]
) -> Iterator[Record]:
    """Reads Parquet files or the Arrow files of a saved dataset, BATCH_ROWS rows of a Parquet file at a time."""
    pa = pyarrow(path)
    for file in _files_of(path, kind):
        number = 0
        try:
            with file.open("rb") as source:
                for batch in _batches(pa, source, kind, part):
                    used = header(str(file), batch.schema.names)
                    for name in filter(None, used[:2]):
                        column = batch.schema.field(name).type
                        if not _is_plain(column, pa.types):
                            raise InvalidArgument(f"{file}: `{name}` is of type {column}; write it as strings")
                    for row in batch.select([*dict.fromkeys(filter(None, used))]).to_pylist():
                        number += 1
                        yield f"{file}: row {number}" + (f" of group {part.start}" if part else ""), row
        except pa.ArrowException as error:
            raise InvalidArgument(f"{file}: not {kind.capitalize()} ({str(error).splitlines()[0]})") from None


def _batches(pa: Any, source: BinaryIO, kind: Format, part: Part | None) -> Iterable[Any]:
    if kind == "arrow":
        return pa.ipc.open_stream(source)  # type: ignore[no-any-return]
    opened = pa.parquet.ParquetFile(source)
    groups = range(opened.num_row_groups) if part is None else range(part.start, part.end)
    return opened.iter_batches(BATCH_ROWS, row_groups=list(groups))  # type: ignore[no-any-return]


def _row_groups(file: Path, size_bytes: int) -> list[int]:
    """Cuts the row groups of a Parquet file into parts of about so many bytes: where each begins, and the end."""
    pa = pyarrow(file)
    try:
        with file.open("rb") as source:
            found = pa.parquet.ParquetFile(source).metadata
            sizes = [found.row_group(n).total_byte_size for n in range(found.num_row_groups)]
    except pa.ArrowException as error:
        raise InvalidArgument(f"{file}: not Parquet ({str(error).splitlines()[0]})") from None
    cuts, held = [0], 0
    for number, size in enumerate(sizes):
        if held and held + size > size_bytes:
            cuts.append(number)
            held = 0
        held += size
    return [*cuts, len(sizes)]


def pyarrow(path: Path) -> Any:
    """Imports pyarrow for a file. Raises FailedPrecondition where it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise FailedPrecondition(f"{path}: Parquet and Arrow need pyarrow: {install('corpus')}") from None
    return pa


def _is_plain(kind: Any, types: Any) -> bool:
    """Whether a column may be an id or a text."""
    known = (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary, types.is_integer)
    return any(is_it(kind) for is_it in known)


def _files_of(path: Path, kind: Format) -> list[Path]:
    if path == STDIN or not path.is_dir():
        return [path]
    if kind == "parquet":
        found = sorted(one for one in path.rglob("*.parquet") if not one.name.startswith("."))  # "._x": macOS's notes
        if not found:
            neither = f"{path}: holds neither *.parquet nor a dataset saved to disk ({HUGGING_FACE})"
            raise InvalidArgument(f"{neither}; name a file in it")
        return found
    state = json_file(path / HUGGING_FACE)
    listed = state.get("_data_files") if isinstance(state, dict) else None
    names = [one.get("filename") if isinstance(one, dict) else None for one in listed or ()]
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise InvalidArgument(f"{path / HUGGING_FACE}: `_data_files` must list file names; save the dataset again")
    return [path / str(name) for name in names]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
