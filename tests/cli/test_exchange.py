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

from aeenc import AsyncClient
from aeenc.oracle import EXPLAINS, REFUSES
from aeenc.trees import HELD_OUT, Dataset, read_trees, write_trees
from aeenc.v1 import oracle_pb2, trainer_pb2, types_pb2
from support.worlds.index_world import DIM, SPACE, facts
from support.worlds.sampler_world import SamplerWorld, at_work, take

EXAMPLES = Path(__file__).parents[2] / "examples"


async def sampled(aeenc, sampler, trees):
    """A finished run over the small trees."""
    words = ("--sampler", sampler.channel.target, "--json", "sample", "science", "--data", trees)
    ended = await aeenc(*words, "--oracle", "fake", "-k", 5)
    assert ended.code == 0, ended.stderr
    return ended.json


async def test_exported_pairs_can_be_imported_once(aeenc, world, trees, tmp_path):
    async with world.sampler() as sampler:
        run = await sampled(aeenc, sampler, trees)
        target = ("--sampler", sampler.channel.target, "--json")
        ended = await aeenc(*target, "export", "pairs", run["run"], "--to", tmp_path / "pairs.jsonl")
        assert ended.json["pairs"] == run["positives"] + run["negatives"] + run["skipped"] > 0
        one_sign = await aeenc(
            *target, "export", "pairs", run["run"], "--to", tmp_path / "n.jsonl", "--sign", "negative"
        )
        assert one_sign.json["pairs"] == run["negatives"]

        words = (*target, "import", "pairs", tmp_path / "pairs.jsonl", "--corpus", "science")
        first = await aeenc(*words)
        assert first.json["pairs"] == ended.json["pairs"]
        assert (await aeenc(*words)).json["run"] == first.json["run"] != run["run"]
        there = [pair async for pair in sampler.list_pairs(run["run"])]
        copied = [pair async for pair in sampler.list_pairs(first.json["run"])]
        assert len(copied) == len(there)
        for old, new in zip(there, copied, strict=True):
            assert replace(new, provenance=replace(new.provenance, run_id=old.provenance.run_id)) == old
        imported = await sampler.get_run(first.json["run"])
        assert imported.state == types_pb2.WORK_STATE_SUCCEEDED
        assert imported.progress.negatives == run["negatives"]


async def test_an_import_into_a_corpus_that_the_index_lacks_says_so_and_needs_no_index(aeenc, fleet, world, tmp_path):
    async with AsyncClient(index=fleet.index) as client:
        await client.index.build("science", facts()[:3])
    pair = {"query": "why", "premise": "ice is cold", "sign": "positive"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair))
    async with world.sampler() as sampler:
        for index, corpus, note in (
            (fleet.index, "science", ""),
            (fleet.index, "sciense", "the index has no corpus 'sciense'"),
            ("127.0.0.1:9", "sciense", ""),
        ):
            options = ("--sampler", sampler.channel.target, "--index", index, "--json")
            ended = await aeenc(*options, "import", "pairs", tmp_path / "pairs.jsonl", "--corpus", corpus)
            assert (ended.code, ended.json["pairs"]) == (0, 1)
            assert (note in ended.stderr) if note else (ended.stderr == "")


async def test_a_run_is_listed_and_deleted(aeenc, world, trees):
    async with world.sampler() as sampler:
        run = await sampled(aeenc, sampler, trees)
        target = ("--sampler", sampler.channel.target, "--json")
        listed = await aeenc(*target, "runs")
        assert [one["run"] for one in listed.json["runs"]] == [run["run"]]
        deleted = await aeenc(*target, "runs", "delete", run["run"])
        assert deleted.json == {"run": run["run"], "deleted": True}
        assert (await aeenc(*target, "runs")).json == {"runs": []}
        assert (await aeenc(*target, "runs", "delete", run["run"])).code == 2


async def test_more_pairs_than_fit_into_a_call_are_imported(aeenc, world, tmp_path):
    record = {"query": "q", "sign": "negative"}
    lines = [json.dumps({**record, "premise": f"fact {n}"}) for n in range(1100)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    async with world.sampler() as sampler:
        words = ("--sampler", sampler.channel.target, "--json", "import", "pairs", tmp_path / "many.jsonl")
        ended = await aeenc(*words, "--corpus", "science")
        assert ended.json["pairs"] == 1100
        found = [pair.premise async for pair in sampler.list_pairs(ended.json["run"])]
        assert found == [f"fact {n}" for n in range(1100)]
        await aeenc(*words, "--corpus", "science")
        assert (await sampler.get_run(ended.json["run"])).progress.negatives == 1100
        (tmp_path / "one.jsonl").write_text(json.dumps({**record, "premise": "another"}))
        words = ("--sampler", sampler.channel.target, "--json", "import", "pairs", tmp_path / "one.jsonl")
        more = await aeenc(*words, "--corpus", "science", "--run", ended.json["run"])
        assert more.json["run"] == ended.json["run"]
        assert (await sampler.get_run(ended.json["run"])).progress.negatives == 1101


async def test_pairs_are_imported_from_pipes_again_and_again(aeenc, world, tmp_path):
    def line(premise):
        return json.dumps({"query": "q", "sign": "negative", "premise": premise}) + "\n"

    async with world.sampler() as sampler:
        words = ("--sampler", sampler.channel.target, "--json", "import", "pairs")
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


async def test_a_file_named_by_a_dash_is_standard_output(aeenc, world, trees, tmp_path, capfd):
    async with world.sampler() as sampler:
        run = await sampled(aeenc, sampler, trees)
        words = ("--sampler", sampler.channel.target, "export", "pairs", run["run"])
        capfd.readouterr()
        ended = await aeenc(*words, "--to", "-")
        lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith('{"format_version')]
        assert (ended.code, ended.stdout) == (0, "")
        assert len(lines) == run["positives"] + run["negatives"] + run["skipped"] > 0
        assert f"{len(lines)} pairs" in ended.stderr
        folder = await aeenc("export", "beir", "--data", trees, "--to", "-")
        assert (folder.code, "is a folder" in folder.stderr) == (2, True)


async def test_a_file_with_one_wrong_line_or_a_packed_one_imports_nothing(aeenc, world, tmp_path):
    good = json.dumps({"query": "q", "premise": "p", "sign": "positive"})
    (tmp_path / "bad.jsonl").write_text((good + "\n") * 1500 + '{"query": "q"}\n')  # more than one call's
    async with world.sampler() as sampler:
        target = ("--sampler", sampler.channel.target, "--json")
        ended = await aeenc(*target, "import", "pairs", tmp_path / "bad.jsonl", "--corpus", "science")
        assert (ended.code, "bad.jsonl:1501: " in ended.error["message"]) == (2, True)
        (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress(f"{good}\n".encode()))
        packed = await aeenc(*target, "import", "pairs", tmp_path / "pairs.jsonl.gz", "--corpus", "science")
        assert (packed.code, "pairs.jsonl.gz:1: the file is packed; unpack" in packed.error["message"]) == (2, True)
        assert [one async for one in sampler.list_runs()] == []
        (tmp_path / "empty.jsonl").write_text("")
        assert (await aeenc(*target, "import", "pairs", tmp_path / "empty.jsonl", "--corpus", "science")).code == 2


async def test_triplets_hold_a_positive_and_a_negative_of_the_run(aeenc, world, trees, tmp_path):
    async with world.sampler() as sampler:
        run = await sampled(aeenc, sampler, trees)
        signs = {(p.query, p.premise): p.sign async for p in sampler.list_pairs(run["run"])}
        words = ("--sampler", sampler.channel.target, "--json", "export", "triplets", run["run"])
        ended = await aeenc(*words, "--to", tmp_path / "t.jsonl")
        few = await aeenc(*words, "--to", tmp_path / "few.jsonl", "--per-query", 1)
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert ended.json["triplets"] == len(lines) > ended.json["queries"] == few.json["triplets"]
    for line in lines:
        assert (signs[line["query"], line["positive"]], signs[line["query"], line["negative"]]) == (1, 2)


async def test_trees_of_a_run_are_written_in_every_form(aeenc, world, trees, tmp_path):
    world.oracle.behaviour = lambda task: [
        oracle_pb2.Verdict(premise_id=candidate.premise.id, judgement=EXPLAINS, leaf=True)
        for candidate in task.candidates
    ]
    async with world.sampler() as sampler:
        run = await sampled(aeenc, sampler, trees)
        words = ("--sampler", sampler.channel.target, "--json", "export", "trees", run["run"])
        ended = await aeenc(*words, "--to", tmp_path / "trees.jsonl")
        built = read_trees(tmp_path / "trees.jsonl")
        assert ended.json["trees"] == len(built) == 2
        assert (await aeenc(*words, "--to", tmp_path / "trees.txt", "--as", "text")).code == 0
        assert (await aeenc(*words, "--to", tmp_path / "all", "--as", "svg")).code == 0
        assert (await aeenc(*words, "--to", tmp_path / "svg", "--as", "svg", "--only", "one-2")).json["trees"] == 1
        unknown = await aeenc(*words, "--to", tmp_path / "x", "--as", "svg", "--only", "nobody")
    assert [tree.hypothesis in (tmp_path / "trees.txt").read_text() for tree in built] == [True, True]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["one-2.svg", "one.svg"]
    assert (tmp_path / "svg" / "one-2.svg").read_text().startswith("<svg")
    assert (unknown.code, "nobody" in unknown.error["message"]) == (2, True)


async def test_the_trees_of_a_run_are_evaluated_as_gold_on_its_corpus(aeenc, world, fleet, tmp_path, trees):
    world.oracle.behaviour = lambda task: [
        oracle_pb2.Verdict(premise_id=task.candidates[0].premise.id, judgement=EXPLAINS, leaf=True)
    ]
    mine = tmp_path / "mine"
    (mine / "dataset" / "task_1").mkdir(parents=True)
    async with world.sampler() as sampler:
        run = await sampled(aeenc, sampler, trees)
        words = ("--sampler", sampler.channel.target, "--json", "export", "trees", run["run"])
        await aeenc(*words, "--to", mine / "dataset" / "task_1" / "dev.jsonl")
    await aeenc(*fleet.options, "--json", "evaluate", "--data", mine, "--corpus", "science")
    [asked] = fleet.trainer.asked
    built = Dataset.load(mine).queries("dev")
    assert asked.config.corpus == "science"
    assert [(one.text, tuple(one.premises)) for one in asked.queries] == [(one.text, one.gold) for one in built] != []


async def test_gold_trees_are_exported_without_any_service(aeenc, trees, tmp_path):
    ended = await aeenc("--json", "export", "beir", "--data", trees, "--split", "train", "--to", tmp_path / "beir")
    assert (ended.json["queries"], ended.json["refused"]) == (3, 0)
    assert ended.json["premises"] == len(Dataset.load(trees).candidates())
    ended = await aeenc("--json", "export", "trees", "--data", trees, "--to", tmp_path / "svg", "--as", "svg")
    assert sorted(path.name for path in (tmp_path / "svg").iterdir()) == ["one-2.svg", "one.svg", "two.svg"]
    again = await aeenc("--json", "export", "trees", "--data", trees, "--to", tmp_path / "svg", "--as", "svg")
    assert (again.code, ended.json["trees"]) == (4, 3)
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


async def test_a_run_in_beirs_layout_has_the_corpus_of_its_index(aeenc, world, fleet, trees, tmp_path):
    facts = tmp_path / "facts.jsonl"
    facts.write_text("".join(json.dumps({"id": f"p{n}", "text": f"fact {n}"}) + "\n" for n in range(60)))
    built = await aeenc(*fleet.options, "--json", "corpus", "build", "science", "--facts", facts)
    assert built.code == 0, built.stderr
    world.index.active = built.json["generation"]
    async with world.sampler() as sampler:
        run = await sampled(aeenc, sampler, trees)
        target = (*fleet.options, "--sampler", sampler.channel.target)
        ended = await aeenc(*target, "--json", "export", "beir", run["run"], "--to", tmp_path / "beir")
        assert ended.code == 0, ended.stderr
    assert ended.json["premises"] == 60
    assert (ended.json["explains"], ended.json["refused"]) == (run["positives"], run["negatives"])


async def test_an_overruled_verdict_is_in_no_export_unless_asked_for(aeenc, world: SamplerWorld, tmp_path):
    async with at_work(world, 1) as (people, sampler, run_id):
        lease = await take(people, "ann")
        ids = [c.premise.id for c in lease.task.candidates]
        answer = await people.submit(lease, ids[:2])
        await asyncio.wait_for(sampler.wait(run_id), 40)
        await people.amend(answer.answer_id, {ids[0]: REFUSES}, "bob")
        target = ("--sampler", sampler.channel.target, "--json")

        async def exported(kind: str, *options: str) -> list[dict[str, object]]:
            file = tmp_path / f"{kind}.jsonl"
            ended = await aeenc(*target, "export", kind, run_id, "--to", file, *options)
            assert ended.code == 0, ended.stderr
            return [json.loads(line) for line in file.read_text().splitlines()]

        signs = [(one["premise_id"], one["sign"]) for one in await exported("pairs")]
        assert sorted(signs) == sorted(zip(ids, ["negative", "positive", "negative", "negative"], strict=True))
        assert [one["premise_id"] for one in await exported("pairs", "--sign", "positive")] == [ids[1]]
        assert {one["positive_id"] for one in await exported("triplets")} == {ids[1]}
        assert len(await exported("pairs", "--overruled")) == 5
        ended = await aeenc(*target, "import", "pairs", tmp_path / "pairs.jsonl", "--corpus", "science")
        assert ended.json["pairs"] == 4
        imported = await sampler.get_run(ended.json["run"])
        assert (imported.progress.positives, imported.progress.negatives) == (1, 3)


@pytest.mark.parametrize("form", ["npy", "parquet"])
async def test_the_vectors_of_a_corpus_are_written_with_their_ids(aeenc, fleet, artifact_store, tmp_path, form):
    async with AsyncClient(index=fleet.index) as client:
        built = await client.index.build("science", facts())
        store = ("--artifacts", artifact_store.root)
        ended = await aeenc("--json", "export", "vectors", "science", "--to", tmp_path / "out", "--as", form, *store)
        assert ended.code == 0, ended.stderr
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
        found = await client.index.search("science", vectors, space_id=SPACE, k=1)
        assert [ids[0] for ids in found.ids] == [row["id"] for row in rows]
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about | {"to": str(tmp_path / "out")} == ended.json
    assert (about["generation"], about["space_id"], about["dim"]) == (built.id, SPACE, DIM)
    again = await aeenc("export", "vectors", "science", "--to", tmp_path / "out", *store)
    unknown = await aeenc("export", "vectors", "none", "--to", tmp_path / "new", *store)
    assert (again.code, unknown.code, (tmp_path / "new").exists()) == (4, 2, False)


async def test_a_folder_of_beir_is_built_sampled_and_trained_on(aeenc, fleet, world, trees, tmp_path):
    ended = await aeenc("export", "beir", "--data", trees, "--split", "train", "--to", tmp_path / "beir")
    assert ended.code == 0, ended.stderr
    data = ("--data", tmp_path / "beir")
    built = await aeenc(*fleet.options, "--json", "corpus", "build", "science", *data)
    assert built.json["premises"] == len(Dataset.load(trees).candidates())
    async with world.sampler() as sampler:
        options = ("--sampler", sampler.channel.target, "--json", "sample", "science", *data)
        run = await aeenc(*options, "--oracle", "fake", "--max-depth", 0)
        assert run.code == 0, run.stderr
        pairs = [pair async for pair in sampler.list_pairs(run.json["run"])]
    queries = {query.text: set(query.gold) for query in Dataset.load(trees).queries("train")}
    assert {pair.query for pair in pairs} == queries.keys()
    fleet.trainer.jobs = [trainer_pb2.Job(id="j")]
    started = await aeenc(*fleet.options, "train", "science", "--run", "r", *data, "--split", "train", "--no-wait")
    assert started.code == 0, started.stderr
    evaluated = await aeenc(*fleet.options, "evaluate", *data, "--split", "train", "--corpus", "science")
    assert evaluated.code == 0, evaluated.stderr
    job, measured = fleet.trainer.asked[-2:]
    for asked in (job.config.validation, measured.queries):
        assert {one.text: set(one.premises) for one in asked} == queries
