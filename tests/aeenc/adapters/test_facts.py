"""Files of facts: every format gives the same facts, malformed ones are named by file and line, none is read whole."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from aeenc.adapters import facts
from aeenc.adapters.facts import STDIN, path_of, read_facts
from aeenc.calls.inputs import begins_again
from aeenc.errors import FailedPrecondition, InvalidArgument

SAME = [("a", "ice is cold"), ("b", "fire is hot")]


def table() -> pa.Table:
    """SAME beside another column; a function, since pyarrow loads pandas for it."""
    return pa.table({"id": ["a", "b"], "vector": [[1.0], [2.0]], "text": ["ice is cold", "fire is hot"]})


def pairs(path: Path, **options: str) -> list[tuple[str, str]]:
    return [(fact.id, fact.text) for fact in read_facts(path, **options)]  # type: ignore[arg-type]


def save_arrow(folder: Path, *tables: pa.Table) -> Path:
    """Writes a dataset as Hugging Face's `save_to_disk` does, one file a table, beside a cache of its own."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, saved in zip([*names, "cache-1.arrow"], [*tables, table()], strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, saved.schema) as writer:
            writer.write_table(saved, max_chunksize=1)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("facts.jsonl", '{"id": "a", "text": "ice is cold"}\n\n{"id": "b", "text": "fire is hot"}\n', SAME),
        ("facts.json", '[{"id": "a", "text": "ice is cold"}, {"id": "b", "text": "fire is hot"}]', SAME),
        ("facts.json", '{"a": "ice is cold", "b": "fire is hot"}', SAME),
        ("facts.ndjson", '{"_id": "a", "title": "", "text": "ice is cold"}\n{"_id": "b", "text": "fire is hot"}', SAME),
        ("facts.csv", "id,text\na,ice is cold\nb,fire is hot\na,ice is cold\n", SAME),
        ("facts.CSV", '\ufeffsentence,uid\r\n"ice is cold",a\r\nfire is hot,b\r\n', SAME),
        ("facts.tsv", "id\tfact\na\tice is cold\n\nb\tfire is hot\n", SAME),
        ("facts.tsv", 'id\tfact\na\t"ice is cold"\r\n"b"\tfire is hot', SAME),
        # a quote in columns with tabs ends with its line
        (
            "facts.tsv",
            'id\ttext\n1\t"hot air\n2\ta 5" pipe\n3\tice',
            [("1", '"hot air'), ("2", 'a 5" pipe'), ("3", "ice")],
        ),
        ("facts.tsv", 'id\ttext\n4\t"hot" air\n5\t"say ""no"""', [("4", '"hot" air'), ("5", 'say "no"')]),
        ("facts.csv", '"nr; (old; new)",text,id\n1,a; b,7\n', [("7", "a; b")]),
        ("facts.csv", "id,x,x,text,,\na,1,2,ice,7,\n", [("a", "ice")]),
        ("facts.jsonl", '{"id": 7, "text": "ice"}\n', [("7", "ice")]),
        pytest.param(
            "facts.csv", f"id,text,page\na,ice,{'x' * 200_000}\n", [("a", "ice")], id="an unused column is long"
        ),
    ],
)
def test_ids_and_texts_come_from_the_file(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert pairs(tmp_path / name) == expected


LISTED = '{"id": "a", "text": "ice", "splits": ["train", "dev"]}\n{"text": "sun", "split": "dev"}\n'
IN_A_LIST = '[{"text": "ice", "splits": ["train", "dev", "dev"]}, {"text": "sun", "splits": "dev"}]'
TAGGED = '{"text": "ice", "tags": ["physics", "water"]}\n{"text": "a frog", "tags": "biology"}\n'


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("facts.jsonl", LISTED, [("ice", ("train", "dev"), ()), ("sun", ("dev",), ())]),
        ("facts.json", IN_A_LIST, [("ice", ("train", "dev"), ()), ("sun", ("dev",), ())]),
        ("facts.csv", "text,split,tags\nice,dev,\nsun, , \n", [("ice", ("dev",), ()), ("sun", (), ())]),
        ("facts.jsonl", TAGGED, [("ice", (), ("physics", "water")), ("a frog", (), ("biology",))]),
        ("facts.csv", 'text,tag\nice,"physics, water"\nsun,\n', [("ice", (), ("physics", "water")), ("sun", (), ())]),
    ],
)
def test_splits_and_tags_come_from_the_file_where_it_has_them(
    tmp_path: Path, name: str, content: str, expected: list[tuple[str, tuple[str, ...], tuple[str, ...]]]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert [(fact.text, fact.splits, fact.tags) for fact in read_facts(path)] == expected


def test_the_splits_of_a_table_may_be_null(tmp_path: Path) -> None:
    splits = pa.array([["dev"], None], pa.list_(pa.string()))
    parquet.write_table(pa.table({"text": ["ice", "sun"], "splits": splits}), tmp_path / "facts.parquet")
    assert [fact.splits for fact in read_facts(tmp_path / "facts.parquet")] == [("dev",), ()]


def test_a_repeated_fact_names_the_same_splits(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    fact = {"id": "a", "text": "ice", "splits": ["dev", "train"]}
    path.write_text(f"{json.dumps(fact)}\n{json.dumps({**fact, 'splits': ['train', 'dev']})}\n")
    assert len(list(read_facts(path))) == 1
    path.write_text(f"{json.dumps(fact)}\n{json.dumps({**fact, 'splits': ['train']})}\n")
    with pytest.raises(InvalidArgument, match=r"facts\.jsonl:2: the id 'a' is used twice.*sets of splits or tags"):
        list(read_facts(path))


def test_a_fact_without_an_id_has_the_same_id_in_every_file(tmp_path):
    lines, listed = tmp_path / "facts.txt", tmp_path / "facts.json"
    lines.write_text("\ufeffice is cold\r\nfire is hot\n", encoding="utf-8")
    listed.write_text(json.dumps(["fire is hot", "ice is cold"]))
    assert {fact.id for fact in read_facts(lines)} == {fact.id for fact in read_facts(listed)}


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("f.jsonl", b'{"text": "a"}\n{"text": \n', "f.jsonl:2: not JSON"),
        ("f.jsonl", b'{"text": "a"}\n{"id": "x"}\n', "f.jsonl:2: `text` must be"),
        ("f.jsonl", b'{"id": 7.5, "text": "a"}\n', "f.jsonl:1: `id` must be"),
        ("f.jsonl", b'{"id": true, "text": "a"}\n', "f.jsonl:1: `id` must be"),
        ("f.jsonl", b'{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}\n', "f.jsonl:2: the id 'x'"),
        ("f.jsonl", b'{"text": "a"}\n{"text": "\\ud83d"}\n', "f.jsonl:2: `text` has half a character"),
        ("f.jsonl", b'{"id": "\\ude00", "text": "a"}\n', "f.jsonl:1: `id` has half a character"),
        ("f.json", b'[\n"a",\n', "f.json:3: not JSON"),
        ("f.jsonl", b'{"text": "a", "splits": ["x", 7]}\n', "f.jsonl:1: `splits` must be a name or a"),
        ("f.csv", b'text,tags\na,"u, ,v"\n', "f.csv:2: `tags` must be a name or a"),
        ("f.jsonl", b'{"text": "a", "split": "\\ude00"}\n', "f.jsonl:1: `split` has half a character"),
        ("f.json", b"7", "f.json:1: must be"),
        ("f.json", b'["a", ""]', "f.json: fact 2: `text`"),
        ("f.jsonl", b'{"title": "a"}\n', "f.jsonl:1: `text` must be there; it has title: choose by --text-column"),
        ("f.csv", b"id,text\na,ice\nb,fire,hot\n", "f.csv:3: has 3 columns, the first line 2"),
        ("f.csv", b'id,text\na,"ice\nis cold"\nb,\n', "f.csv:4: `text` must be"),
        ("f.csv", b'id,text\na,"ice\nis cold"\nb,"fire\nis" hot\n', "f.csv:4: "),
        ("f.csv", b'id,text\na,ice\nb,"fire\nis hot\nand\n', "f.csv:3: unexpected end"),
        ("f.csv", b'id,text\na,"ice" cold\n', "f.csv:2: "),
        ("f.csv", b"id,text\ra,ice\r", "f.csv:1: a CR inside a line"),
        ("f.txt", b"ice is cold\rfire is hot\r", "f.txt:1: a CR inside a line"),
        ("f.txt", b"\x1f\x8b\x08\x00rest", "f.txt:1: the file is packed"),
        ("f.csv", b"id,name\na,ice\n", "f.csv:1: `text` must be there; it has id, name: choose by --text-column"),
        ("f.csv", b"id,text\na,ice\n\nb,\xff\n", "f.csv:4: byte 3 is not UTF-8"),
        ("f.csv", b"id,text\n", "f.csv:1: holds no texts"),
        ("f.tsv", b"id\ttext\n\tice\n", "f.tsv:2: `id` must be"),
        ("f.csv", b"id,text,text\na,ice,fire\n", "f.csv:1: the column `text` is there twice"),
        ("f.csv", b"id, id,text\na,b,ice\n", "f.csv:1: the column `id` is there twice"),
        ("f.json", b'{"a": "ice", "a": "fire"}', "f.json: 'a' is there twice in one object"),
        ("f.jsonl", b'{"text": "ice", "split": 0}\n', "f.jsonl:1: `split` must be a name or a"),
        ("f.jsonl", b'{"text": "ice", "splits": {}}\n', "f.jsonl:1: `splits` must be a name or a"),
        pytest.param("f.jsonl", b"[" * 100_000, "f.jsonl:1: nested too deeply", id="deep"),
        pytest.param("f.jsonl", b'{"id": ' + b"7" * 5000 + b"}", "f.jsonl:1: a number has too many", id="digits"),
        ("f.parquet", b"PAR1 or not", "f.parquet: not Parquet ("),
        ("f.txt", "ice\nfire\n".encode("utf-16-le"), "f.txt:1: a NUL; the file is damaged, or not UTF-8"),
        ("f.txt", b"a fact\n\xff\n", "f.txt:2: byte 1 is not UTF-8"),
        ("f.txt", b"\n \n", "f.txt:1: holds no texts"),
    ],
)
def test_a_malformed_fact_is_named_by_file_and_line(tmp_path, name, content, place):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidArgument) as caught:
        list(read_facts(path))
    assert place in str(caught.value)


def test_parquet_files_saved_datasets_and_directories_give_the_same_facts(tmp_path: Path) -> None:
    (tmp_path / "hub" / "data").mkdir(parents=True)
    parquet.write_table(table(), tmp_path / "facts.parquet")
    parquet.write_table(table().slice(0, 1), tmp_path / "hub" / "data" / "part-0.parquet")
    parquet.write_table(table().slice(1, 1), tmp_path / "hub" / "data" / "part-1.parquet")
    saved = save_arrow(tmp_path / "saved", table().slice(0, 1), table().slice(1, 1))
    for source in (tmp_path / "facts.parquet", tmp_path / "hub", saved):
        assert pairs(source) == SAME, source


@pytest.mark.parametrize("size_bytes", [1, 7, 40, 10_000])
@pytest.mark.parametrize("name", ["facts.jsonl", "facts.txt", "facts.parquet", "facts.csv", "hub"])
def test_parts_hold_each_fact_once_and_in_order_wherever_they_are_cut(tmp_path: Path, name: str, size_bytes: int):
    texts = [f"fact {'é' * (n % 5)} {n}" for n in range(30)]
    path = tmp_path / name
    table = pa.table({"id": [f"f{n}" for n in range(30)], "text": texts})
    if name == "hub":
        path.mkdir()
        for n in range(3):
            parquet.write_table(table.slice(10 * n, 10), path / f"{n}.parquet", row_group_size=4)
    elif path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=4)
    elif path.suffix == ".csv":
        path.write_text("id,text\n" + "".join(f"f{n},{text}\n" for n, text in enumerate(texts)))
    else:
        lines = [json.dumps({"id": f"f{n}", "text": t}) if name == "facts.jsonl" else t for n, t in enumerate(texts)]
        path.write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")  # without an end of the last line
    parts = list(read_facts(path).parts(size_bytes))
    assert [fact.text for part in parts for _, fact in part.lines()] == texts
    assert [fact.text for fact in read_facts(path)] == texts
    cut = {"facts.csv": 1, "hub": 9, "facts.parquet": 8}.get(name, 20)
    assert len(parts) >= cut or size_bytes > 1


def test_a_malformed_fact_of_a_part_is_named_by_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_text('{"text": "ice"}\n{"text": "fire"}\nnonsense\n')
    with pytest.raises(InvalidArgument, match=r"facts\.jsonl: byte 33: not JSON"):
        list(list(read_facts(path).parts(20))[1].lines())


@pytest.mark.parametrize("store", ["file", "memory"])
def test_a_url_names_a_source_in_an_object_store(tmp_path: Path, store: str) -> None:
    (tmp_path / "facts.jsonl").write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in SAME))
    (tmp_path / "facts.json").write_text(json.dumps(dict(SAME)))
    (tmp_path / "facts.csv").write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in SAME))
    parquet.write_table(table(), tmp_path / "facts.parquet")
    save_arrow(tmp_path / "saved", table())
    root = f"{store}://{tmp_path}"
    if store == "memory":
        fsspec.filesystem(store).put(f"{tmp_path}/", str(tmp_path), recursive=True)
    for name in ("facts.jsonl", "facts.json", "facts.csv", "facts.parquet", "saved", ""):
        assert [(fact.id, fact.text) for fact in read_facts(path_of(f"{root}/{name}"))] == SAME, name
        parts = list(read_facts(path_of(f"{root}/{name}")).parts(20))
        assert [(fact.id, fact.text) for part in parts for _, fact in part.lines()] == SAME, name
    assert path_of("a/b") == Path("a/b")


def test_a_store_whose_package_is_missing_is_named_with_the_remedy(monkeypatch):
    for name in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, name, None)
    for url in ("s3://bucket/facts.txt", "gs://bucket/facts.txt", "nosuch://bucket/facts.txt"):
        with pytest.raises(FailedPrecondition, match=rf"^{url} cannot be read .*s3fs, gcsfs, adlfs"):
            path_of(url)
    with pytest.raises(FailedPrecondition, match=r"nosuch://x.*package of your store"):
        path_of("nosuch://x")


def test_numbers_are_ids_in_a_table_and_columns_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"number": [7, 8], "text": ["x", "y"], "body": pa.array(["ice", "fire"]).dictionary_encode()})
    parquet.write_table(table, path)
    assert pairs(path, id_column="number", text_column="body") == [("7", "ice"), ("8", "fire")]
    with pytest.raises(InvalidArgument, match=r"t\.parquet: `title` must be there; it has number, text, body"):
        pairs(path, text_column="title")
    with pytest.raises(InvalidArgument, match=r"`nr` must be there; .*: choose by --id-column"):
        pairs(path, id_column="nr")
    parquet.write_table(pa.table({"text": ["ice", None]}), path)
    with pytest.raises(InvalidArgument, match=r"t\.parquet: row 2: `text` must be a string"):
        pairs(path)


@pytest.mark.parametrize("values", [[1.0, 2.0], [Decimal(1), Decimal(2)], [b"a", b"b"], [True, False], [None, None]])
def test_a_column_of_a_type_that_cannot_be_used_is_refused_by_name(tmp_path: Path, values: list[object]) -> None:
    path, column = tmp_path / "t.parquet", pa.array(values)
    for name in ("id", "text"):
        parquet.write_table(pa.table({"content": ["ice", "ice"], name: column}), path)
        with pytest.raises(InvalidArgument) as caught:
            pairs(path)
        assert f"t.parquet: `{name}` is of type {column.type}; write it as strings" in str(caught.value)
    parquet.write_table(pa.table({"text": ["ice", "fire"], "content": column}), path)
    assert [text for _, text in pairs(path)] == ["ice", "fire"]


def test_views_of_strings_are_texts(tmp_path: Path) -> None:
    views = pa.table({"text": pa.array(["ice", "fire"], pa.string_view())})
    assert [text for _, text in pairs(save_arrow(tmp_path / "saved", views))] == ["ice", "fire"]


def test_only_columns_of_a_table_that_are_not_used_may_be_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    columns = [pa.array(["a"]), pa.array(["1"]), pa.array(["2"]), pa.array(["ice"])]
    parquet.write_table(pa.Table.from_arrays(columns, ["id", "x", "x", "text"]), path)
    assert pairs(path) == [("a", "ice")]
    parquet.write_table(pa.Table.from_arrays(columns, ["id", "text", "x", "text"]), path)
    with pytest.raises(InvalidArgument, match=r"t\.parquet: the column `text` is there twice"):
        pairs(path)


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_the_separator_of_a_csv_file_is_that_of_its_first_line(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text(
        separator.join(["Nr.", "Satz (en)"]) + "\n" + separator.join(["1", '"ice, or; snow|\tmelts"']) + "\n"
    )
    assert pairs(path, id_column="Nr.", text_column="Satz (en)") == [("1", "ice, or; snow|\tmelts")]


def test_lines_of_text_have_no_columns_to_choose(tmp_path: Path) -> None:
    for path, column in ((STDIN, "text_column"), (tmp_path / "facts.txt", "id_column")):
        with pytest.raises(InvalidArgument, match=r"lines of text have no columns; .* --format jsonl or csv"):
            read_facts(path, **{column: "claim"})


def test_a_file_of_an_unknown_suffix_is_read_as_the_format_that_is_named(tmp_path: Path) -> None:
    refused = {
        "facts.py": "py are of no known format; name it by --format: txt,",
        "facts.txt.gz": "gz are packed; unpack",
    }
    for name, reason in refused.items():
        path = tmp_path / name
        path.write_text("ice is cold\n")
        with pytest.raises(InvalidArgument, match=reason):
            pairs(path)
        assert [text for _, text in pairs(path, file_format="txt")] == ["ice is cold"]
    for name in ("facts", "facts.TXT"):
        (tmp_path / name).write_text("ice is cold\n")
        assert [text for _, text in pairs(tmp_path / name)] == ["ice is cold"]


def test_a_directory_that_is_no_dataset_or_several_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"holds neither \*\.parquet nor a dataset.*name a file in it"):
        pairs(tmp_path)
    for kind in ("jsonl", "arrow"):
        with pytest.raises(InvalidArgument, match=rf"a directory cannot be {kind}; it may hold \*\.parquet, or a data"):
            read_facts(tmp_path, file_format=kind)
    for split in ("train", "test"):
        save_arrow(tmp_path / "both" / split, table())
    (tmp_path / "both" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(InvalidArgument, match=r"several splits \(test, train\); give the directory of one"):
        pairs(tmp_path / "both")
    assert pairs(tmp_path / "both" / "train") == SAME
    with pytest.raises(InvalidArgument, match="a directory cannot be jsonl; it may hold"):
        pairs(tmp_path / "both" / "train", file_format="jsonl")
    for files in ('[{"filename": "../test/x.arrow"}]', "[]"):
        (tmp_path / "both" / "train" / "state.json").write_text(f'{{"_data_files": {files}}}')
        with pytest.raises(InvalidArgument, match="must list file names"):
            pairs(tmp_path / "both" / "train")


def test_without_pyarrow_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FailedPrecondition, match=r"pip install '\./clients/python\[corpus\]'"):
        pairs(tmp_path / "facts.parquet")


def test_standard_input_is_read_once_in_the_format_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def type_in(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    type_in("ice is cold\nfire is hot\n")
    typed = read_facts(STDIN)
    assert not begins_again(typed)
    assert [fact.text for fact in typed] == ["ice is cold", "fire is hot"]
    type_in("id,text\na,ice is cold\nb,fire is hot\n")
    assert pairs(STDIN, file_format="csv") == SAME
    type_in('{"text": 1}\n')
    with pytest.raises(InvalidArgument, match="-:1: `text` must be"):
        pairs(STDIN, file_format="jsonl")
    with pytest.raises(InvalidArgument, match="-: a pipe cannot be parquet"):
        pairs(STDIN, file_format="parquet")


def test_a_pipe_is_read_once_as_standard_input_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    piped = read_facts(path, file_format="csv")
    assert not begins_again(piped)
    threading.Thread(target=path.write_text, args=("id,text\na,ice is cold\nb,fire is hot\n",), daemon=True).start()
    assert [(fact.id, fact.text) for fact in piped] == SAME


def test_a_source_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(start: str, row: str) -> Iterator[str]:
        yield start
        for number in range(500):
            yield row.format(number, "x" * 4000)

    texts = {"txt": ("", "{} {}\n"), "csv": ("id,text\n", "{},{}\n"), "jsonl": ("", '{{"id": "{}", "text": "{}"}}\n')}
    sources = [tmp_path / f"facts.{name}" for name in texts]
    for source, (start, row) in zip(sources, texts.values(), strict=True):
        with source.open("w") as file:
            file.writelines(lines(start, row))
    monkeypatch.setattr(facts, "BATCH_ROWS", 16)
    table = pa.table({"text": [f"{number} {'x' * 4000}" for number in range(500)]})
    parquet.write_table(table, tmp_path / "facts.parquet", row_group_size=50)
    for source in (*sources, tmp_path / "facts.parquet"):
        tracemalloc.start()
        assert sum(1 for _ in read_facts(source)) == 500
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 500_000, f"{source.name} of 2 MB took {peak:,} bytes"


def test_notes_of_an_operating_system_beside_parquet_files_are_no_facts(tmp_path: Path) -> None:
    parquet.write_table(table(), tmp_path / "facts.parquet")
    (tmp_path / "._facts.parquet").write_bytes(b"\x00\x05\x16\x07")
    assert list(read_facts(tmp_path)) == list(read_facts(tmp_path / "facts.parquet"))
