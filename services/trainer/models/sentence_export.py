"""`aeenc export encoder`: a checkpoint as a directory that sentence-transformers opens, with its prompts and limits.

    DIR/query_0_Transformer     the checkpoint                     ─┐
    DIR/document_0_Transformer  the premise encoder of its space   ─┴─ one model: encode_query, encode_document

A checkpoint learns to find vectors that another encoder has made of the premises, so both sides belong together. One
side alone, and a checkpoint that encodes both, is a plain directory: a base model like any other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc.cli.options import taking
from aeenc.cli.output import output_of
from aeenc.errors import FailedPrecondition, InvalidArgument, NotFound
from aeenc.files.whole import whole_folder
from services.corpus.commands import store_of
from services.store.artifacts import Artifact, ArtifactStore
from services.store.formats import UNREADABLE
from services.trainer.models.space import SpaceSpec, pad_id_of, space_id_of

FOLDER = "checkpoints"
_MODULES = "sentence_transformers.models."  # names that every release since 5 reads
_WITHOUT_LIBRARY = {"bigru"}  # architectures that transformers lack


class Side(StrEnum):
    """Which encoder of a space: that of queries, that of premises, or both in one model."""

    BOTH = "both"
    QUERY = "query"
    PREMISE = "premise"


def premise_encoder_of(store: ArtifactStore, query: Artifact) -> Artifact:
    """Finds the checkpoint whose tensors span the space of `query`. Raises FailedPrecondition without one."""
    space_id = query.meta["space_id"]
    for version in [query.id, *store.list(FOLDER)]:
        with suppress(NotFound, *UNREADABLE):  # of others, one may be on its way out, or damaged
            if store.described(FOLDER, version).meta.get("space_id") == space_id:
                found = store.open(FOLDER, version)
                if _spans(found):
                    return found
    raise FailedPrecondition(
        f"no readable checkpoint in {store.root} is the premise encoder of space {space_id}; export with --side query, "
        "or bring it back"
    )


def _spans(artifact: Artifact) -> bool:
    """Whether an encoder is that of its space's premises: as it was published, or trained together with another."""
    of_tensors = space_id_of(artifact.path, SpaceSpec.of_meta(artifact.meta))
    return bool(artifact.meta["pretrained"]) or of_tensors == artifact.meta["space_id"]


def write_sentence_transformer(to: Path, query: Artifact | None, premise: Artifact | None) -> None:
    """Writes one side, or both, into the existing directory `to`.

    Raises FailedPrecondition for an encoder that sentence-transformers cannot compute.
    """
    sides = [artifact for artifact in (query, premise) if artifact is not None]
    prompts = {"query": sides[0].meta["query_prefix"], "document": sides[0].meta["premise_prefix"]}
    if len({artifact.id for artifact in sides}) == 1:
        modules = list(_write_modules(to, "", sides[0]))
    else:
        parts = {name: list(_write_modules(to, f"{name}_", one)) for name, one in zip(prompts, sides, strict=True)}
        router = {
            "types": {one["path"]: one["type"] for part in parts.values() for one in part},
            "structure": {name: [one["path"] for one in part] for name, part in parts.items()},
            "parameters": {"default_route": "document", "allow_empty_key": True},
        }
        _write(to / "router_config.json", router)
        modules = [{"path": "", "type": f"{_MODULES}Router"}]
    _write(to / "modules.json", [{"idx": n, "name": str(n), **one} for n, one in enumerate(modules)])
    _write(to / "config_sentence_transformers.json", {"prompts": prompts, "similarity_fn_name": "cosine"})
    (to / "README.md").write_text(_card(sides, prompts), encoding="utf-8")


def _write_modules(to: Path, prefix: str, artifact: Artifact) -> Iterator[dict[str, str]]:
    """Writes transformer, pooling and normalisation of one encoder; yields their folders and classes."""
    spec = SpaceSpec.of_meta(artifact.meta)
    config = json.loads(artifact.file("config.json").read_bytes())
    if config.get("model_type") in _WITHOUT_LIBRARY or spec.dim != config.get("hidden_size", spec.dim):
        raise FailedPrecondition(
            f"checkpoint {artifact.id} is a {config.get('model_type')} with layers that sentence-transformers would "
            "need code for; only transformers without a dense layer are exported"
        )
    folder = to / f"{prefix}0_Transformer" if prefix else to
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder.mkdir(exist_ok=True)
        shutil.copyfile(artifact.file(name), folder / name)
    tokens = json.loads(artifact.file("tokenizer.json").read_bytes())
    known = {token["id"]: token["content"] for token in tokens.get("added_tokens", ())}
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": spec.max_tokens,
        "truncation_side": spec.truncation_side,
        "pad_token": known.get(pad_id_of(artifact.path)),
    }
    _write(folder / "tokenizer_config.json", tokenizer)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": spec.max_tokens, "do_lower_case": False})
    modes = ("cls_token", "mean_tokens", "max_tokens")
    pooling = {f"pooling_mode_{mode}": mode.startswith(spec.pooling) for mode in modes}
    yield {"path": folder.name if prefix else "", "type": f"{_MODULES}Transformer"}
    for number, (name, written) in enumerate(
        {"Pooling": {"word_embedding_dimension": spec.dim, **pooling}, "Normalize": {}}.items(), start=1
    ):
        module = f"{prefix}{number}_{name}"
        _write(to / module / "config.json", written)
        yield {"path": module, "type": f"{_MODULES}{name}"}


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _card(sides: list[Artifact], prompts: dict[str, str]) -> str:
    """Returns the model card: what each side is, what it learned from, how to use it."""
    lines = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "---", ""]
    lines += ["# Premise retrieval, trained by AE-Enc", ""]
    for artifact in {one.id: one for one in sides}.values():
        meta, lineage = artifact.meta, json.dumps(artifact.meta.get("lineage", {}), sort_keys=True)
        lines.append(f"- checkpoint `{artifact.id}`, space `{meta['space_id']}`, {meta['dim']} dimensions: `{lineage}`")
    lines += ["", f"Prompts: query `{prompts['query']}`, document `{prompts['document']}`. Vectors have length 1.", ""]
    lines += [
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        "model = SentenceTransformer(DIR)",
    ]
    lines += ["queries = model.encode_query([hypothesis])", "premises = model.encode_document(facts)", "```", ""]
    return "\n".join(lines)


@taking(store=store_of)
def command(
    context: typer.Context,
    version: Annotated[str, typer.Argument(help="The checkpoint; `aeenc checkpoints` and `aeenc labels` name them.")],
    to: Annotated[Path, typer.Option(help="The folder; it must not exist.")],
    store: ArtifactStore,
    side: Annotated[Side, typer.Option(help="The encoder of queries, of premises, or both in one model.")] = Side.BOTH,
) -> None:
    """Writes an encoder as a directory that sentence-transformers opens, with a model card.

    Its vectors are ours: encode_query has the checkpoint's, encode_document
    those of the premises in the index. A single side can be the base model of
    another deployment (AEENC_TRAINER_BASE_MODEL).
    """
    query = store.open(FOLDER, version, verify="full")
    if "pooling" not in query.meta:
        raise InvalidArgument(f"checkpoint {version} is a cross-encoder; name an encoder of texts")
    premise = None if side is Side.QUERY else premise_encoder_of(store, query)
    with whole_folder(to) as folder:
        write_sentence_transformer(folder, None if side is Side.PREMISE else query, premise)
    written = {"query": None if side is Side.PREMISE else query.id, "premise": None if premise is None else premise.id}
    output_of(context).result({"to": str(to), **written})


def register(app: typer.Typer) -> None:
    """Adds the command. Called through the entry-point group `aeenc.commands`."""
    for group in app.registered_groups:
        if group.name == "export" and group.typer_instance is not None:
            group.typer_instance.command("encoder")(command)
