"""Small objects of a bucket on a disk: replaced as a whole under the eyes of whoever reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.store.objects import Bucket

KEY = "replicas/one.json"


@pytest.mark.parametrize("durable", [True, False])
def test_who_is_reading_an_object_while_it_is_replaced_reads_the_old_one_to_its_end(
    tmp_path: Path, durable: bool
) -> None:
    bucket = Bucket(f"file://{tmp_path}")
    bucket.write(KEY, b"the old content", durable=durable)
    with (tmp_path / KEY).open("rb", buffering=0) as reader:
        bucket.write(KEY, b"the new", durable=durable)
        assert reader.read() == b"the old content"
    assert bucket.read(KEY) == b"the new"
    assert bucket.names("replicas") == ["one.json"], "nothing is left beside it"
