"""The places where the benchmarks and the tests look for EntailmentBank."""

from pathlib import Path

import pytest

from benchmarks.harness import entailmentbank
from support import real_data


@pytest.mark.parametrize("directory", [entailmentbank.directory, real_data.directory], ids=["benchmarks", "tests"])
def test_what_was_fetched_into_the_checkout_goes_before_what_lies_beside_it(directory, tmp_path, monkeypatch):
    monkeypatch.delenv("AEENC_BENCH_DATA", raising=False)
    monkeypatch.delenv("AEENC_TEST_DATA", raising=False)
    root = tmp_path / "checkout"
    assert directory(root) == tmp_path / "shared" / "data" / "entailmentbank"
    (root / "data" / "entailmentbank").mkdir(parents=True)
    assert directory(root) == root / "data" / "entailmentbank"


def test_a_directory_that_is_named_goes_first(tmp_path, monkeypatch):
    (tmp_path / "data" / "entailmentbank").mkdir(parents=True)
    monkeypatch.setenv("AEENC_BENCH_DATA", "elsewhere")
    monkeypatch.setenv("AEENC_TEST_DATA", "folder")
    assert entailmentbank.directory(tmp_path) == Path("elsewhere")
    assert real_data.directory(tmp_path) == Path("folder/entailmentbank")
