"""`aeenc export` and `aeenc import`: a run's pairs and trees as files, and files as a run."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aeenc.oracle import EXPLAINS, REFUSES
from aeenc.trees import HELD_OUT, Dataset, read_trees, write_trees
from aeenc.v1 import oracle_pb2, trainer_pb2, types_pb2
from support.worlds.index_world import DIM, SPACE, facts
from support.worlds.sampler_world import SamplerWorld, at_work, take

EXAMPLES = Path(__file__).parents[2] / "examples"


async def sampled(aeenc, trees):
    """A finished run over the small trees."""
    return await aeenc.json("sample", "science", "--data", trees, "--oracle", "fake", "-k", 5)


async def test_exported_pairs_can_be_imported_once(aeenc, sampler, trees, tmp_path):
    run = await sampled(aeenc, trees)
    ended = await aeenc.json("export", "pairs", run["run"], "--to", tmp_path / "pairs.jsonl")
    assert ended["pairs"] == run["positives"] + run["negatives"] + run["skipped"] > 0
    one_sign = await aeenc.json("export", "pairs", run["run"], "--to", tmp_path / "n.jsonl", "--sign", "negative")
    assert one_sign["pairs"] == run["negatives"]

    words = ("import", "pairs", tmp_path / "pairs.jsonl", "--corpus", "science")
    first = await aeenc.json(*words)
    assert first["pairs"] == ended["pairs"]
    assert (await aeenc.json(*words))["run"] == first["run"] != run["run"]
    there = [pair async for pair in sampler.list_pairs(run["run"])]
    copied = [pair async for pair in sampler.list_pairs(first["run"])]
    assert len(copied) == len(there)
    for old, new in zip(there, copied, strict=True):
        assert replace(new, provenance=replace(new.provenance, run_id=old.provenance.run_id)) == old
    imported = await sampler.get_run(first["run"])
    assert imported.state == types_pb2.WORK_STATE_SUCCEEDED
    assert imported.progress.negatives == run["negatives"]


async def test_an_import_into_a_corpus_that_the_index_lacks_says_so_and_needs_none(
    aeenc, fleet, index, sampler, tmp_path
):
    await index.build("science", facts()[:3])
    pair = {"query": "why", "premise": "ice is cold", "sign": "positive"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair))
    for at, corpus, note in (
        (fleet.index, "science", ""),
        (fleet.index, "sciense", "the index has no corpus 'sciense'"),
        ("127.0.0.1:9", "sciense", ""),
    ):
        options = ("--index", at, "--json")
        ended = await aeenc(*options, "import", "pairs", tmp_path / "pairs.jsonl", "--corpus", corpus)
        assert (ended.code, ended.json["pairs"]) == (0, 1)
        assert (note in ended.stderr) if note else (ended.stderr == "")


async def test_more_pairs_than_fit_into_a_call_are_imported(aeenc, sampler, tmp_path):
    record = {"query": "q", "sign": "negative"}
    lines = [json.dumps({**record, "premise": f"fact {n}"}) for n in range(1100)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    words = ("import", "pairs", tmp_path / "many.jsonl")
    ended = await aeenc.json(*words, "--corpus", "science")
    assert ended["pairs"] == 1100
    found = [pair.premise async for pair in sampler.list_pairs(ended["run"])]
    assert found == [f"fact {n}" for n in range(1100)]
    await aeenc("--json", *words, "--corpus", "science")
    assert (await sampler.get_run(ended["run"])).progress.negatives == 1100
    (tmp_path / "one.jsonl").write_text(json.dumps({**record, "premise": "another"}))
    words = ("import", "pairs", tmp_path / "one.jsonl")
    more = await aeenc.json(*words, "--corpus", "science", "--run", ended["run"])
    assert more["run"] == ended["run"]
    assert (await sampler.get_run(ended["run"])).progress.negatives == 1101


async def test_pairs_are_imported_from_pipes_again_and_again(aeenc, sampler, tmp_path):
    def line(premise):
        return json.dumps({"query": "q", "sign": "negative", "premise": premise}) + "\n"

    words = ("--json", "import", "pairs")
    runs = []
    for premise in ("one", "two", "two"):
        os.mkfifo(pipe := tmp_path / f"pipe-{len(runs)}")
        writing = asyncio.create_task(asyncio.to_thread(pipe.write_text, line(premise)))
        ended = await aeenc(*words, pipe, "--corpus", "science")
        await writing
        assert ended.code == 0, ended.stderr
        runs.append(ended.json["run"])
    assert runs[0] != runs[1] == runs[2]
    command = [sys.executable, "-m", "aeenc.cli.main", *words, "-", "--corpus", "science"]
    piped = await asyncio.to_thread(subprocess.check_output, command, input=line("two"), text=True, timeout=60)
    assert json.loads(piped)["run"] == runs[2]


async def test_a_file_named_by_a_dash_is_standard_output(aeenc, sampler, trees, tmp_path, capfd):
    run = await sampled(aeenc, trees)
    words = ("export", "pairs", run["run"])
    capfd.readouterr()
    ended = await aeenc(*words, "--to", "-")
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith('{"format_version')]
    assert (ended.code, ended.stdout) == (0, "")
    assert len(lines) == run["positives"] + run["negatives"] + run["skipped"] > 0
    assert f"{len(lines)} pairs" in ended.stderr
    folder = await aeenc("export", "beir", "--data", trees, "--to", "-")
    assert (folder.code, "is a folder" in folder.stderr) == (2, True)


async def test_a_file_with_one_wrong_line_or_a_packed_one_imports_nothing(aeenc, sampler, tmp_path):
    good = json.dumps({"query": "q", "premise": "p", "sign": "positive"})
    (tmp_path / "bad.jsonl").write_text((good + "\n") * 1500 + '{"query": "q"}\n')  # more than one call's
    ended = await aeenc("--json", "import", "pairs", tmp_path / "bad.jsonl", "--corpus", "science")
    assert (ended.code, "bad.jsonl:1501: " in ended.error["message"]) == (2, True)
    (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress(f"{good}\n".encode()))
    packed = await aeenc("--json", "import", "pairs", tmp_path / "pairs.jsonl.gz", "--corpus", "science")
    assert (packed.code, "pairs.jsonl.gz:1: the file is packed; unpack" in packed.error["message"]) == (2, True)
    assert [one async for one in sampler.list_runs()] == []
    (tmp_path / "empty.jsonl").write_text("")
    assert (await aeenc("--json", "import", "pairs", tmp_path / "empty.jsonl", "--corpus", "science")).code == 2


async def test_triplets_hold_a_positive_and_a_negative_of_the_run(aeenc, sampler, trees, tmp_path):
    run = await sampled(aeenc, trees)
    signs = {(p.query, p.premise): p.sign async for p in sampler.list_pairs(run["run"])}
    words = ("export", "triplets", run["run"])
    ended = await aeenc.json(*words, "--to", tmp_path / "t.jsonl")
    few = await aeenc.json(*words, "--to", tmp_path / "few.jsonl", "--per-query", 1)
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert ended["triplets"] == len(lines) > ended["queries"] == few["triplets"]
    for line in lines:
        assert (signs[line["query"], line["positive"]], signs[line["query"], line["negative"]]) == (1, 2)


async def test_trees_of_a_run_are_written_in_every_form(aeenc, world, sampler, trees, tmp_path):
    world.oracle.behaviour = lambda task: [
        oracle_pb2.Verdict(premise_id=candidate.premise.id, judgement=EXPLAINS, leaf=True)
        for candidate in task.candidates
    ]
    run = await sampled(aeenc, trees)
    words = ("export", "trees", run["run"])
    ended = await aeenc.json(*words, "--to", tmp_path / "trees.jsonl")
    built = read_trees(tmp_path / "trees.jsonl")
    assert ended["trees"] == len(built) == 2
    assert (await aeenc("--json", *words, "--to", tmp_path / "trees.txt", "--as", "text")).code == 0
    assert (await aeenc("--json", *words, "--to", tmp_path / "all", "--as", "svg")).code == 0
    assert (await aeenc.json(*words, "--to", tmp_path / "svg", "--as", "svg", "--only", "one-2"))["trees"] == 1
    unknown = await aeenc("--json", *words, "--to", tmp_path / "x", "--as", "svg", "--only", "nobody")
    assert [tree.hypothesis in (tmp_path / "trees.txt").read_text() for tree in built] == [True, True]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["one-2.svg", "one.svg"]
    assert (tmp_path / "svg" / "one-2.svg").read_text().startswith("<svg")
    assert (unknown.code, "nobody" in unknown.error["message"]) == (2, True)


async def test_the_trees_of_a_run_are_evaluated_as_gold_on_its_corpus(aeenc, world, sampler, fleet, tmp_path, trees):
    world.oracle.behaviour = lambda task: [
        oracle_pb2.Verdict(premise_id=task.candidates[0].premise.id, judgement=EXPLAINS, leaf=True)
    ]
    mine = tmp_path / "mine"
    (mine / "dataset" / "task_1").mkdir(parents=True)
    run = await sampled(aeenc, trees)
    words = ("export", "trees", run["run"])
    await aeenc("--json", *words, "--to", mine / "dataset" / "task_1" / "dev.jsonl")
    await aeenc("--json", "evaluate", "--data", mine, "--corpus", "science")
    [asked] = fleet.trainer.asked
    assert not fleet.encoder.encoded_premises, "a named corpus is not built"
    built = Dataset.load(mine).queries("dev")
    assert asked.config.corpus == "science"
    assert [(one.text, tuple(one.premises)) for one in asked.queries] == [(one.text, one.gold) for one in built] != []


async def test_gold_trees_are_exported_without_any_service(aeenc, trees, tmp_path):
    ended = await aeenc.json("export", "beir", "--data", trees, "--split", "train", "--to", tmp_path / "beir")
    assert (ended["queries"], ended["refused"]) == (3, 0)
    dataset = Dataset.load(trees)
    assert ended["explains"] == sum(len(query.gold) for query in dataset.queries("train"))
    assert ended["premises"] == len(dataset.candidates())
    ended = await aeenc.json("export", "trees", "--data", trees, "--to", tmp_path / "svg", "--as", "svg")
    assert sorted(path.name for path in (tmp_path / "svg").iterdir()) == ["one-2.svg", "one.svg", "two.svg"]
    again = await aeenc("--json", "export", "trees", "--data", trees, "--to", tmp_path / "svg", "--as", "svg")
    assert (again.code, ended["trees"]) == (4, 3)
    assert (await aeenc("export", "beir", "--to", tmp_path / "none")).code == 2
    one, *_ = read_trees(file := trees / "dataset" / "task_1" / "train.jsonl")
    write_trees(file, [replace(one, id="鉄" * 100), replace(one, id="鉄" * 101)])
    ended = await aeenc("export", "trees", "--data", trees, "--to", tmp_path / "long", "--as", "svg")
    assert (ended.code, len(list((tmp_path / "long").iterdir()))) == (0, 2), ended.stderr


async def test_folds_are_written_with_a_setting_of_the_trainer_that_can_be_pasted_into_a_shell(aeenc, trees, tmp_path):
    to = tmp_path / f"it's {'long ' * 20}"
    ended = await aeenc("export", "folds", "--data", trees, "--to", to, "--folds", 2)
    [line] = ended.stdout.splitlines()
    command, setting = shlex.split(line)
    name, _, value = setting.partition("=")
    assert (command, name) == ("export", "AEENC_TRAINER_DATA_SETS")
    folds = {fold: str((to / fold).resolve()) for fold in ("fold-0", "fold-1")}
    assert json.loads(value) == folds
    held_out = [Dataset.load(Path(path)).trees(HELD_OUT) for path in folds.values()]
    assert sum(map(len, held_out)) == len(Dataset.load(trees).trees("train"))


async def test_a_run_in_beirs_layout_has_the_corpus_of_its_index(aeenc, world, sampler, fleet, trees, tmp_path):
    facts = tmp_path / "facts.jsonl"
    facts.write_text("".join(json.dumps({"id": f"p{n}", "text": f"fact {n}"}) + "\n" for n in range(60)))
    built = await aeenc.json("corpus", "build", "science", "--facts", facts)
    world.index.active = built["generation"]
    run = await sampled(aeenc, trees)
    told = await aeenc.json("export", "beir", run["run"], "--to", tmp_path / "beir")
    assert told["premises"] == 60
    assert (told["explains"], told["refused"]) == (run["positives"], run["negatives"])


async def test_an_overruled_verdict_is_in_no_export_unless_asked_for(aeenc, world: SamplerWorld, tmp_path, monkeypatch):
    async with at_work(world, 1) as (people, sampler, run_id):
        lease = await take(people, "ann")
        ids = [c.premise.id for c in lease.task.candidates]
        answer = await people.submit(lease, ids[:2])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        await people.amend(answer.answer_id, {ids[0]: REFUSES}, "bob")
        monkeypatch.setenv("AEENC_SAMPLER", sampler.channel.target)

        async def exported(kind: str, *options: str) -> list[dict[str, object]]:
            file = tmp_path / f"{kind}.jsonl"
            await aeenc.json("export", kind, run_id, "--to", file, *options)
            return [json.loads(line) for line in file.read_text().splitlines()]

        signs = [(one["premise_id"], one["sign"]) for one in await exported("pairs")]
        assert sorted(signs) == sorted(zip(ids, ["negative", "positive", "negative", "negative"], strict=True))
        assert [one["premise_id"] for one in await exported("pairs", "--sign", "positive")] == [ids[1]]
        assert {one["positive_id"] for one in await exported("triplets")} == {ids[1]}
        assert len(await exported("pairs", "--overruled")) == 5
        told = await aeenc.json("import", "pairs", tmp_path / "pairs.jsonl", "--corpus", "science")
        assert told["pairs"] == 4
        imported = await sampler.get_run(told["run"])
        assert (imported.progress.positives, imported.progress.negatives) == (1, 3)


@pytest.mark.parametrize("form", ["npy", "parquet"])
async def test_the_vectors_of_a_corpus_are_written_with_their_ids(aeenc, index, artifact_store, tmp_path, form):
    built = await index.build("science", facts())
    store = ("--artifacts", artifact_store.root)
    told = await aeenc.json("export", "vectors", "science", "--to", tmp_path / "out", "--as", form, *store)
    if form == "npy":
        vectors = np.load(tmp_path / "out" / "vectors.npy")
        rows = [json.loads(line) for line in (tmp_path / "out" / "premises.jsonl").read_text().splitlines()]
        example = [sys.executable, EXAMPLES / "exported_vectors.py", tmp_path / "out", rows[3]["id"]]
        shown = await asyncio.to_thread(subprocess.check_output, example, text=True, timeout=60)
        assert shown.splitlines()[0] == f"1.000  {rows[3]['text']}"
    else:
        rows = pq.read_table(tmp_path / "out" / "premises.parquet").to_pylist()
        vectors = np.array([row.pop("vector") for row in rows], dtype=np.float32)
    assert rows == [{"id": one.id, "text": one.text} for one in facts()]
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(rows), DIM))
    found = await index.search("science", vectors, space_id=SPACE, k=1)
    assert [ids[0] for ids in found.ids] == [row["id"] for row in rows]
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about | {"to": str(tmp_path / "out")} == told
    assert (about["generation"], about["space_id"], about["dim"]) == (built.id, SPACE, DIM)
    again = await aeenc("export", "vectors", "science", "--to", tmp_path / "out", *store)
    unknown = await aeenc("export", "vectors", "none", "--to", tmp_path / "new", *store)
    assert (again.code, unknown.code, (tmp_path / "new").exists()) == (4, 2, False)


async def test_a_folder_of_beir_is_built_sampled_and_trained_on(aeenc, fleet, sampler, trees, tmp_path):
    await aeenc.json("export", "beir", "--data", trees, "--split", "train", "--to", tmp_path / "beir")
    data = ("--data", tmp_path / "beir")
    built = await aeenc.json("corpus", "build", "science", *data)
    assert built["premises"] == len(Dataset.load(trees).candidates())
    options = ("sample", "science", *data)
    run = await aeenc("--json", *options, "--oracle", "fake", "--max-depth", 0)
    assert run.code == 0, run.stderr
    pairs = [pair async for pair in sampler.list_pairs(run.json["run"])]
    queries = {query.text: set(query.gold) for query in Dataset.load(trees).queries("train")}
    assert {pair.query for pair in pairs} == queries.keys()
    fleet.trainer.jobs = [trainer_pb2.Job(id="j")]
    await aeenc.json("train", "science", "--run", "r", *data, "--split", "train", "--no-wait")
    await aeenc.json("evaluate", *data, "--split", "train", "--corpus", "science")
    job, measured = fleet.trainer.asked[-2:]
    for asked in (job.config.validation, measured.queries):
        assert {one.text: set(one.premises) for one in asked} == queries
