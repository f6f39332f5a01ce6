"""Runs, jobs, labels and evaluations through the command line: what is asked for, what is told, how it ends."""

import json
import shutil

import pytest
from google.protobuf import timestamp_pb2

from aeenc import errors, values
from aeenc.cli.corpus import corpus_name
from aeenc.cli.learning.jobs import show_job
from aeenc.cli.learning.runs import show_run
from aeenc.cli.output import Output
from aeenc.trees import Dataset
from aeenc.v1 import registry_pb2, sampler_pb2, trainer_pb2, types_pb2


def job(state, **fields):
    progress = trainer_pb2.JobProgress(phase="training", steps=4, steps_done=4, best_validation_map=0.5, loss=0.25)
    at = [timestamp_pb2.Timestamp(seconds=10 * n) for n in (1, 2)]
    return trainer_pb2.Job(id="j1", state=state, progress=progress, created_at=at[0], ended_at=at[1], **fields)


def test_counts_say_what_they_count_whatever_the_number(capsys):
    show_job(values.Job.from_message(job(types_pb2.WORK_STATE_SUCCEEDED)), Output())
    show_run(values.Run.from_message(sampler_pb2.Run(id="r1", state=types_pb2.WORK_STATE_SUCCEEDED)), Output())
    told = " ".join(capsys.readouterr().out.split())
    counted = (
        "pairs not to be learned",
        "queries that the loss cannot use",
        "premises that are not in",
        "verdicts without",
    )
    assert [words for words in counted if f"0 {words}" not in told] == []


async def test_a_run_explains_each_hypothesis_once_and_reports_its_counts(aeenc, sampler, trees):
    command = ("sample", "science", "--data", trees, "--oracle", "fake", "-k", 3)
    ended = await aeenc("--json", *command, "--max-depth", 1)
    assert ended.code == 0
    assert ended.json["run"] in json.loads(ended.stderr)["note"]
    assert (ended.json["state"], ended.json["trees"], ended.json["trees_done"]) == ("SUCCEEDED", 2, 2)
    assert ended.json["positives"] + ended.json["negatives"] == ended.json["judgements"]
    run = await sampler.get_run(ended.json["run"])
    assert (run.config.k, run.config.max_depth, run.config.split) == (3, 1, "train")
    shown = await aeenc(*command)
    assert "SUCCEEDED" in shown.stdout
    assert "trees/s" in shown.stderr


async def test_hypotheses_of_a_file_are_explained_from_a_corpus(aeenc, sampler, trees, tmp_path):
    lines, rows, nothing = (tmp_path / name for name in ("hypotheses.txt", "hypotheses.csv", "none.txt"))
    nothing.write_text("")
    lines.write_text("the nail moves\nsteel is magnetic\n")
    rows.write_text("nr;claim\n1;the nail moves\n")
    asked = ("--oracle", "fake", "-k", 3, "--max-depth", 0)
    ended = await aeenc("--json", "sample", "science", "--hypotheses", lines, *asked)
    assert (ended.code, ended.json["trees_done"], ended.json["split"]) == (0, 2, ""), ended.stderr
    columns = ("--id-column", "nr", "--text-column", "claim", "--split", "train")
    ended = await aeenc("--json", "sample", "science", "--hypotheses", rows, *asked, *columns)
    assert (ended.code, ended.json["trees_done"], ended.json["split"]) == (0, 1, "train"), ended.stderr
    assert {pair.query async for pair in sampler.list_pairs(ended.json["run"])} == {"the nail moves"}
    for words, said in (
        (("science",), "give either --data DIR or --hypotheses FILE"),
        (("science", "--data", trees, "--hypotheses", lines), "give either --data DIR or --hypotheses FILE"),
        (("science", "--data", trees, "--text-column", "claim"), "go with --hypotheses"),
        (("--hypotheses", lines), "aeenc sample CORPUS --hypotheses FILE"),
        (("science", "--data", lines), "hypotheses.txt: is a file, not a directory"),
        (("science", "--hypotheses", nothing, *asked), "none.txt:1: holds no texts; write one a line"),
    ):
        refused = await aeenc("--json", "sample", *words)
        assert (refused.code, said in refused.error["message"]) == (2, True), refused.stderr


async def test_runs_and_jobs_are_listed_with_what_tells_them_apart_and_runs_deleted(aeenc, sampler, fleet, trees):
    words = ("sample", "science", "--data", trees, "--oracle", "fake", "-k", 3, "--max-depth", 0)
    run = (await aeenc.json(*words))["run"]
    (told,) = (await aeenc.json("runs"))["runs"]
    assert (told["run"], told["corpus"], told["oracle"], told["split"]) == (run, "science", "fake", "train")
    assert told["started_at"].startswith("20")
    shown = (await aeenc("runs")).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert all(part in shown for part in (run, "science, oracle fake", "split train", "2 of 2 trees"))
    config = trainer_pb2.JobConfig(corpus="science", run_ids=[run], data_sets=["gold"])
    fleet.trainer.jobs = [job(types_pb2.WORK_STATE_SUCCEEDED, version="q95a0123456789ab", config=config)]
    (told,) = (await aeenc.json("jobs"))["jobs"]
    assert (told["corpus"], told["runs"], told["data_sets"]) == ("science", [run], ["gold"])
    assert told["started_at"] == "1970-01-01T00:00:10+00:00"
    shown = (await aeenc("jobs")).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert all(part in shown for part in ("j1", run, "version q95a0123456789ab"))
    assert await aeenc.json("runs", "delete", run) == {"run": run, "deleted": True}
    assert await aeenc.json("runs") == {"runs": []}
    assert (await aeenc("runs", "delete", run)).code == 2


async def test_labels_are_listed_and_deleted(aeenc, fleet):
    assert "no labels" in (await aeenc("labels")).stdout
    fleet.trainer.labels = [
        types_pb2.Label(space_id="s0", name="stable", versions=["q1-" + "a" * 16], previous_versions=["q0"], revision=2)
    ]
    (told,) = (await aeenc.json("labels"))["labels"]
    assert (told["label"], told["versions"], told["space_id"]) == ("stable", ["q1-" + "a" * 16], "s0")
    shown = (await aeenc("labels")).stdout
    assert ("q1-" + "a" * 16 in shown, "s0" in shown) == (True, False)
    fleet.trainer.labels.append(types_pb2.Label(space_id="cross-encoder", name="stable", versions=["c1"], revision=1))
    assert "cross-encoder" in (await aeenc("labels")).stdout
    deleted = await aeenc("--json", "labels", "delete", "trial", "--space", "s0")
    assert deleted.json == {"label": "trial", "deleted": True}
    assert (fleet.trainer.asked[0].label, fleet.trainer.asked[0].space_id) == ("trial", "s0")


async def test_a_run_without_a_corpus_builds_that_of_its_data_once(aeenc, world, fleet, trees):
    async with world.sampler(index_target=fleet.index) as sampler:
        targets = ("--sampler", sampler.channel.target)
        command = (*targets, "--json", "sample", "--data", trees, "--oracle", "fake", "-k", 3, "--max-depth", 0)
        ended = await aeenc(*command)
        assert ended.code == 0
        assert (await sampler.get_run(ended.json["run"])).config.corpus == corpus_name(Dataset.load(trees))
        encoded = len(fleet.encoder.encoded_premises)
        assert encoded > 0
        assert (await aeenc(*command)).code == 0
        assert len(fleet.encoder.encoded_premises) == encoded


async def test_the_options_of_a_run_are_asked_for(aeenc, sampler, trees):
    command = ("sample", "science", "--data", trees)
    options = ("--max-judgements", 7, "--max-negatives", 2, "--margin", 0.25, "--no-rewordings", "--conditioned")
    ended = await aeenc.json(*command, "--oracle", "fake", "-k", 3, *options)
    config = (await sampler.get_run(ended["run"])).config
    assert (config.max_judgements, config.max_negatives_per_query, config.conditioned) == (7, 2, True)
    assert config.negative_filter == values.NegativeFilter(relative_margin=0.25, rewordings=True)
    ended = await aeenc.json(*command, "--oracle", "fake", "-k", 3)
    assert not (await sampler.get_run(ended["run"])).config.negative_filter


async def test_a_run_of_depth_0_judges_hypotheses_and_a_spent_budget_says_what_was_not_begun(aeenc, sampler, tmp_path):
    (tmp_path / "own.txt").write_text("".join(f"hypothesis {n}\n" for n in range(10)))
    command = ("--json", "sample", "science", "--hypotheses")
    command = (*command, tmp_path / "own.txt", "--oracle", "fake", "-k", 3, "--max-depth", 0)
    whole = await aeenc(*command)
    assert (whole.json["nodes_judged"], whole.json["trees_done"]) == (10, 10)
    assert "budget" not in whole.stderr
    spent = await aeenc(*command, "--max-judgements", 12)
    assert (spent.json["judgements"], spent.json["trees_done"]) == (12, 4)
    assert "12 has ended the run: 6 of 10 trees are unfinished, 6 of them not begun" in spent.stderr
    followed = await aeenc("follow", spent.json["run"])
    assert "6 of them not begun" in followed.stderr


async def test_a_run_that_is_not_waited_for_is_named(aeenc, world, sampler, trees):
    world.oracle.delay_s = 0.2
    command = ("sample", "science", "--data", trees)
    ended = await aeenc.json(*command, "--oracle", "fake", "--no-wait")
    assert ended["state"] in {"PENDING", "RUNNING"}
    assert (await sampler.wait(ended["run"])).progress.trees_done == 2


async def test_a_job_is_started_as_asked_and_leaves_its_version(aeenc, fleet, trees):
    fleet.trainer.jobs = [job(types_pb2.WORK_STATE_RUNNING), job(types_pb2.WORK_STATE_SUCCEEDED, version="q7")]
    words = ("train", "science", "--run", "r1", "--run", "r2", "--loss", "triplet-margin", "--margin", 0)
    ended = await aeenc("--json", *words, "--seed", 5, "--data", trees)
    assert ended.code == 0
    assert "j1" in json.loads(ended.stderr)["note"]
    told = {"job": "j1", "state": "SUCCEEDED", "version": "q7", "validation_map": 0.5, "seconds": 10.0, "steps": 4}
    assert told.items() <= ended.json.items()
    assert "only try it: aeenc publish q7 --label trial" in (await aeenc("train", "science", "--run", "r1")).stdout
    config = fleet.trainer.asked[0].config
    assert (list(config.run_ids), config.loss) == (["r1", "r2"], trainer_pb2.LOSS_TRIPLET_MARGIN)
    assert (config.seed, config.split) == (5, "train")
    assert (config.HasField("margin"), config.margin, config.HasField("regularization")) == (True, 0.0, False)
    assert [(query.text, list(query.premises)) for query in config.validation] == [("ice floats", ["ice is light"])]


def gained(outcome=registry_pb2.OUTCOME_BETTER, change=0.334, p=0.0001, queries=49):
    """A job that has ended with this gain."""
    made = job(types_pb2.WORK_STATE_SUCCEEDED, version="q7")
    made.progress.best_validation_map = 0
    compared = made.progress.gain
    compared.version, compared.queries, compared.outcome = "q0", queries, outcome
    compared.version_map, compared.candidate_map = 0.5, 0.5 + change
    compared.p_better, compared.p_value = (p, 1 - p) if change > 0 else (1 - p, p)
    return made


@pytest.mark.parametrize(
    ("told", "words", "command"),
    [
        (gained(), "better (+.334, p .0001)", "aeenc publish q7\n"),
        (
            gained(registry_pb2.OUTCOME_NO_DIFFERENCE, 0.01, 0.3),
            "no difference shown (+.010, p .300)",
            "aeenc publish q7 --anyway",
        ),
        (gained(registry_pb2.OUTCOME_WORSE, -0.1, 0.002), "worse (-.100, p .002)", "aeenc publish q7 --anyway"),
        (gained(registry_pb2.OUTCOME_TOO_FEW, 0.0, 1.0, 0), "too few", "aeenc publish q7 --anyway"),
    ],
    ids=["better", "no-difference", "worse", "too-few"],
)
async def test_a_job_says_in_a_word_what_it_has_gained(aeenc, fleet, told, words, command):
    fleet.trainer.jobs = [told]
    shown = (await aeenc("train", "science", "--run", "r1")).stdout
    assert words in shown
    assert ("MAP .500 to ." in shown) == bool(told.progress.gain.queries)
    assert command in shown
    assert "validation map" not in shown
    assert words in " ".join((await aeenc("jobs")).stdout.split())


async def test_what_was_not_measured_is_not_zero(aeenc, fleet):
    made = job(types_pb2.WORK_STATE_SUCCEEDED, version="q7")
    made.progress.best_validation_map = 0
    fleet.trainer.jobs = [made]
    shown = (await aeenc("train", "science", "--data-set", "gold")).stdout
    assert ("none measured" in shown, "validation map" in shown) == (True, False)
    told = await aeenc.json("train", "science", "--data-set", "gold")
    assert (told["validation_map"], told["gain"]) == (None, None)


async def test_training_publishes_by_itself_only_what_is_better(aeenc, fleet):
    fleet.trainer.jobs = [gained()]
    command = ("train", "science", "--run", "r1", "--publish")
    ended = await aeenc("--json", *command)
    assert (ended.code, ended.json["published"], ended.json["gain"]["outcome"]) == (0, True, "better")
    request = fleet.trainer.asked[-1]
    assert (request.versions, request.only_better, request.force) == (["q7"], True, False)
    fleet.trainer.jobs = [gained(registry_pb2.OUTCOME_NO_DIFFERENCE, 0.01, 0.3)]
    asked = len(fleet.trainer.asked)
    ended = await aeenc("--json", *command)
    assert (ended.code, ended.json["published"]) == (0, False)
    assert "was not shown to be better" in ended.stderr
    assert not [one for one in fleet.trainer.asked[asked:] if isinstance(one, registry_pb2.PublishRequest)]
    assert (await aeenc("--json", *command, "--no-wait")).code == 2


async def test_publish_takes_only_what_is_better_unless_told_anyway_and_a_canary_with_its_share(aeenc, fleet):
    for words in ((), ("--anyway",), ("--label", "trial")):
        assert (await aeenc("publish", "q1", *words)).code == 0
    ended = await aeenc("--json", "publish", "q1", "--label", "canary", "--share", 0.1)
    assert (ended.code, ended.json["label"], ended.json["share"]) == (0, "canary", 0.1)
    *asked, canary = fleet.trainer.asked
    assert [(one.only_better, one.force) for one in asked] == [(True, False), (False, True), (False,) * 2]
    assert (canary.share, asked[2].HasField("share")) == (0.1, False)


@pytest.mark.parametrize("state", [types_pb2.WORK_STATE_FAILED, types_pb2.WORK_STATE_CANCELLED])
async def test_a_job_that_ends_badly_is_exit_code_5_with_its_reason(aeenc, fleet, state):
    fleet.trainer.jobs = [job(state, error="out of memory")]
    ended = await aeenc("--json", "train", "science", "--run", "r1")
    assert (ended.code, ended.json["error"]) == (5, "out of memory")
    assert "out of memory" in ended.error["message"]


async def test_a_job_is_followed_where_no_sampler_answers(aeenc, fleet):
    fleet.trainer.jobs = [job(types_pb2.WORK_STATE_SUCCEEDED)]
    elsewhere = ("--sampler", fleet.encoder_target)  # an encoder, which knows no runs
    assert (await aeenc.json(*elsewhere, "follow", "j1"))["job"] == "j1"
    ended = await aeenc(*elsewhere, "--trainer", fleet.index, "--json", "follow", "j1")
    assert (ended.code, "another service or another release is there" in ended.error["message"]) == (2, True)


async def test_jobs_and_checkpoints_are_deleted_by_name(aeenc, fleet):
    fleet.trainer.checkpoint = trainer_pb2.Checkpoint(version="q7", labels=["trial"], size_bytes=5_000)
    listed = await aeenc("checkpoints")
    assert all(told in listed.stdout for told in ("q7", "trial", "5,000"))
    assert "0.0000" not in listed.stdout  # nothing was measured
    fleet.trainer.checkpoint.validation_map = 0.25
    assert "0.2500" in (await aeenc("checkpoints")).stdout
    deleted = await aeenc("--json", "checkpoints", "delete", "q7")
    assert deleted.json == {"version": "q7", "deleted": True}
    assert (await aeenc.json("jobs", "delete", "j1")) == {"job": "j1", "deleted": True}
    assert [fleet.trainer.asked[0].version, fleet.trainer.asked[1].job_id] == ["q7", "j1"]
    assert all(request.request_id for request in fleet.trainer.asked)
    fleet.trainer.failure = errors.FailedPrecondition("checkpoint q7 is in use: label 'trial' names it")
    refused = await aeenc("--json", "checkpoints", "delete", "q7")
    assert (refused.code, "label 'trial'" in refused.error["message"]) == (4, True)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_garbage_of_both_services_is_collected_and_summed_up(aeenc, fleet, sampler, dry_run):
    words = ("gc", *(["--dry-run"] if dry_run else []))
    ended = await aeenc.json(*words)
    shown = (await aeenc(*words)).stdout
    (one,) = ended["garbage"]
    assert (one["kind"], one["id"], one["bytes"]) == ("job", "j1", 2048)
    assert (ended["bytes"], ended["dry_run"]) == (2048, dry_run)
    assert fleet.trainer.asked[0].dry_run == dry_run
    assert ("1 would be removed, 2,048 bytes" if dry_run else "1 removed, 2,048 bytes") in shown


async def test_publish_and_rollback_say_what_every_encoder_serves(aeenc, fleet):
    ended = await aeenc("--json", "publish", "q1", "--wait", 5, "--force")
    assert (ended.code, ended.json["versions"], ended.json["complete"]) == (0, ["q1"], True)
    assert [rollout["instance"] for rollout in ended.json["rollouts"]] == ["encoder-a", "encoder-b"]
    request = fleet.trainer.asked[0]
    assert (request.label, request.wait.seconds, request.force) == ("stable", 5, True)
    ended = await aeenc("rollback", "--label", "canary", "--space", "cross-encoder")
    assert ended.code == 0
    assert (fleet.trainer.asked[1].label, fleet.trainer.asked[1].space_id) == ("canary", "cross-encoder")
    assert "was q1, now q0; another rollback returns to q1" in ended.stdout
    await aeenc("rollback", "--corpus", "science")
    assert fleet.trainer.asked[2].corpus == "science"


async def test_publish_says_what_the_gate_compared_or_why_nothing(aeenc, fleet):
    figures = {"queries": 594, "candidate_map": 0.5, "version_map": 0.625, "p_value": 0.25, "p_better": 0.75}
    fleet.trainer.gate.comparisons.add(version="q0", outcome=registry_pb2.OUTCOME_NO_DIFFERENCE, **figures)
    ended = await aeenc.json("publish", "q1")
    told = {"version": "q0", "outcome": "no_difference", **figures}
    assert ended["gate"] == {"comparisons": [told], "not_compared": ""}
    shown = " ".join((await aeenc("publish", "q1")).stdout.split())
    assert all(figure in shown for figure in ("594", "0.500", "0.625", "no difference shown (-.125, p .250)"))
    fleet.trainer.gate = registry_pb2.PublishResponse(not_compared="it was forced")
    assert "not compared: it was forced" in (await aeenc("publish", "q1", "--force")).stdout


@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        ({"revision": 2, "ok": False, "reason": "disk full"}, "disk full"),
        ({"revision": 1, "ok": True}, "is still at revision 1"),
        ({"revision": 1, "ok": False, "reason": "disk full"}, "is still at revision 1: disk full"),
        ({"revision": 0, "reason": "has not answered yet"}, "has not answered yet"),
    ],
    ids=["refuses", "silent", "refused-before", "never-answered"],
)
async def test_an_incomplete_rollout_is_exit_code_5_and_names_who_lags_and_why(aeenc, fleet, rollout, why):
    label = types_pb2.Label(revision=rollout.pop("revision"))
    fleet.trainer.complete = False
    fleet.trainer.lagging = types_pb2.Rollout(instance="encoder-b", label=label, **rollout)
    ended = await aeenc("--json", "publish", "q1")
    assert (ended.code, ended.json["complete"]) == (5, False)
    assert ended.error["message"].endswith(f": encoder-b ({why})")
    shown = await aeenc("publish", "q1", "--wait", 0)
    assert (shown.code, f"no: {why}" in shown.stdout) == (0, True)
    fleet.trainer.moved_on_to = "q9"
    overtaken = await aeenc("--json", "publish", "q1")
    assert overtaken.code == 5
    assert "stable has moved on to q9 (revision 2) meanwhile" in overtaken.error["message"]


async def test_data_that_were_split_anew_get_premises_with_the_new_splits(aeenc, fleet, index, trees, tmp_path):
    split_anew = shutil.copytree(trees, tmp_path / "split-anew")
    task_1 = split_anew / "dataset" / "task_1"
    (task_1 / "dev.jsonl").rename(task_1 / "test.jsonl")
    (task_1 / "train.jsonl").rename(task_1 / "dev.jsonl")
    name = corpus_name(Dataset.load(trees))
    assert corpus_name(Dataset.load(split_anew)) == name
    used = []
    for data, split in ((trees, "dev"), (split_anew, "test"), (trees, "dev"), (split_anew, "test")):
        told = await aeenc.json("evaluate", "--data", data, "--split", split, "--keep")
        used.append(fleet.trainer.asked[-1].config.corpus)
        assert told["corpus"] == used[-1]
    assert (used[0], used[:2]) == (name, used[2:])
    for data, corpus in ((trees, used[0]), (split_anew, used[1])):
        found = {one.text: set(one.splits) async for one in index.list_premises(corpus)}
        assert found == {one.text: set(one.splits) for one in Dataset.load(data).candidates()}
        assert len([one async for one in index.list_generations(corpus)]) == 1, "each is built once"
