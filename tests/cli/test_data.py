"""`aeenc data fetch`: whole and checked, or nothing."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from aeenc.cli.data import ENTAILMENTBANK_FILES, blob_id, fetch_entailmentbank
from aeenc.errors import AlreadyExists, DataLoss, Unavailable
from aeenc.trees import Dataset

LEMMAS = Path(__file__).parents[2] / "examples" / "lemmas"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def url(trees, monkeypatch):
    """Serves the directory of trees."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=trees))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def files(trees):
    return {path.relative_to(trees).as_posix(): blob_id(path.read_bytes()) for path in sorted(trees.rglob("*.jsonl"))}


def test_a_blob_id_is_what_git_says():
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_good_files_are_put_in_place_in_the_layout_that_is_read(url, files, tmp_path):
    calls = []
    fetched = fetch_entailmentbank(
        tmp_path / "new" / "eb", url=url, files=files, on_progress=lambda done, total: calls.append((done, total))
    )
    assert fetched
    assert Dataset.load(tmp_path / "new" / "eb").splits == ("train", "dev")
    assert calls == [(1, 2), (2, 2)]
    assert not fetch_entailmentbank(tmp_path / "new" / "eb", url="http://127.0.0.1:1", files=files)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["eb"]


@pytest.mark.parametrize("there", [False, True])
def test_one_changed_byte_and_nothing_is_kept(url, files, tmp_path, trees, there):
    target = tmp_path / "new" / "eb"
    target.parent.mkdir()
    if there:
        target.mkdir()
    path = trees / list(files)[-1]
    path.write_bytes(path.read_bytes().replace(b"nail", b"Nail"))
    with pytest.raises(DataLoss, match="train"):
        fetch_entailmentbank(target, url=url, files=files)
    assert list(target.parent.rglob("*")) == ([target] if there else [])


def test_a_file_that_is_not_served_leaves_nothing(url, files, tmp_path):
    target = tmp_path / "new" / "eb"
    with pytest.raises(Unavailable, match="404"):
        fetch_entailmentbank(target, url=url, files={**files, "dataset/none": "0" * 40})
    with pytest.raises(Unavailable):
        fetch_entailmentbank(target, url="http://127.0.0.1:1", files=files)
    assert not list(target.parent.rglob("*"))


async def test_a_folder_in_use_is_never_overwritten_and_an_unknown_name_refused(aeenc, url, files, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    with pytest.raises(AlreadyExists):
        fetch_entailmentbank(tmp_path / "mine", url=url, files=files)
    ended = await aeenc("--json", "data", "fetch", "entailmentbank", "--to", tmp_path / "mine")
    assert (ended.code, ended.error["status"], "--to" in ended.error["message"]) == (4, "ALREADY_EXISTS", True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]
    assert (await aeenc("data", "fetch", "somethingelse")).code == 2


def test_all_files_of_the_layout_are_pinned():
    splits = {f"dataset/task_{task}/{split}.jsonl" for task in (1, 2) for split in ("train", "dev", "test")}
    assert set(ENTAILMENTBANK_FILES) == {*splits, "supporting_data/worldtree_corpus_sentences_extended.json"}
    assert all(len(blob) == 40 for blob in ENTAILMENTBANK_FILES.values())


@pytest.mark.parametrize(("leak", "code"), [(False, 0), (True, 1)])
async def test_a_data_set_is_checked_and_a_leak_ends_with_1(aeenc, trees, leak, code):
    files = [trees / "dataset" / "task_1" / f"{split}.jsonl" for split in ("train", "dev")]
    if leak:
        files[1].write_text(files[1].read_text() + files[0].read_text())
    ended = await aeenc("--json", "data", "check", trees)
    assert ended.code == code, ended.stderr
    assert any(fault["kind"] == "query-in-train" for fault in ended.json["faults"]) is leak
    shown = await aeenc("data", "check", trees)
    assert "│ train │ 1" in shown.stdout


async def test_a_folder_of_beir_is_checked(aeenc):
    ended = await aeenc("--json", "data", "check", LEMMAS)
    assert (ended.code, ended.json["grave"]) == (0, 0), ended.stderr
