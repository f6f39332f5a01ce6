"""deploy/milvus.yml, laid over docker-compose.yml: an image that has the client, and settings that the index knows."""

from pathlib import Path

import yaml

from services.index.settings import IndexSettings

ROOT = Path(__file__).parents[2]
BASE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OVER = yaml.safe_load((ROOT / "deploy" / "milvus.yml").read_text())["services"]


def test_the_index_alone_is_changed_and_every_variable_is_a_setting():
    assert set(OVER) == {"index"} <= set(BASE)
    fields = {f"AEENC_INDEX_{name}".upper() for name in IndexSettings.model_fields}
    assert set(OVER["index"]["environment"]) <= fields
    assert OVER["index"]["environment"]["AEENC_INDEX_BACKEND"] == "milvus"


def test_an_optional_secret_that_is_unset_is_not_passed_on():
    assert OVER["index"]["environment"]["AEENC_INDEX_MILVUS_TOKEN"] is None  # Compose hands on what is set, or nothing
    for service in (*BASE.values(), *OVER.values()):
        assert not [value for value in service.get("environment", {}).values() if ":-}" in str(value)]


def test_the_image_of_the_variant_has_both_faiss_and_the_client():
    variant = OVER["index"]["build"]["args"]["VARIANT"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f'[ "$VARIANT" = {variant} ]; then root=".[index-cpu,index-milvus,$EXTRAS]";' in dockerfile
