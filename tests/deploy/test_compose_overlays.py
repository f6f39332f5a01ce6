"""Files of deploy/ laid over docker-compose.yml: an index in another image, with settings that it knows."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from services.index.settings import IndexSettings

ROOT = Path(__file__).parents[2]
BASE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OVER = {
    name: yaml.safe_load((ROOT / "deploy" / f"{name}.yml").read_text())["services"] for name in ("milvus", "index-gpu")
}


@pytest.mark.parametrize(
    ("name", "asked", "installed"),
    [
        (
            "milvus",
            {"AEENC_INDEX_BACKEND": "milvus"},
            'if [ "$VARIANT" = milvus ]; then root=".[index-cpu,index-milvus,$EXTRAS]";',
        ),
        ("index-gpu", {"AEENC_INDEX_DEVICE": "cuda"}, 'else root=".[$SERVICE-$VARIANT,$EXTRAS]"; fi'),
    ],
)
def test_the_index_alone_is_changed_in_an_image_that_has_what_its_settings_ask_for(
    name: str, asked: dict[str, Any], installed: str
):
    assert set(OVER[name]) == {"index"} <= set(BASE)
    index = OVER[name]["index"]
    fields = {f"AEENC_INDEX_{field}".upper() for field in IndexSettings.model_fields}
    assert asked.items() <= index["environment"].items()
    assert set(index["environment"]) <= fields
    assert installed in (ROOT / "Dockerfile").read_text()
    assert index["build"]["args"]["VARIANT"] == ("milvus" if name == "milvus" else "gpu")


def test_an_index_on_a_gpu_gets_one():
    assert OVER["index-gpu"]["index"]["deploy"] == BASE["encoder-gpu"]["deploy"]


def test_an_optional_secret_that_is_unset_is_not_passed_on():
    assert OVER["milvus"]["index"]["environment"]["AEENC_INDEX_MILVUS_TOKEN"] is None  # what is set, or nothing
    for service in (*BASE.values(), *(one["index"] for one in OVER.values())):
        assert not [value for value in service.get("environment", {}).values() if ":-}" in str(value)]
