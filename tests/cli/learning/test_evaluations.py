"""`aeenc evaluate` in all modes: what the trainer is asked, what is told, and the files that others read."""

import json
import shutil
from pathlib import Path

import ir_measures
import pytest
from ir_measures import AP

from aeenc import Client, errors, values
from aeenc.blocking import BlockingTrainerClient
from aeenc.cli.corpus import corpus_name
from aeenc.cli.learning import evaluation
from aeenc.cli.learning.loop import rounds_table
from aeenc.cli.learning.reports import report_dict, report_tables
from aeenc.cli.output import metrics_table
from aeenc.evaluation import load_data, query_id, read_grades, read_run
from aeenc.index import IndexClient
from aeenc.loop import Round
from aeenc.trees import Dataset
from aeenc.v1 import index_pb2, types_pb2

read = values.EvaluationReport.from_message
RATED = Path(__file__).parents[3] / "data" / "sample" / "textgraphs"


def report(**fields):
    metrics = types_pb2.RetrievalMetrics(map=0.5, ndcg=0.6, hit_at_10=0.7, hit_at_50=0.9)
    part = types_pb2.EvaluationPart(
        kind=types_pb2.EVALUATION_PART_KIND_PREMISE_UNSEEN, strict=metrics, paper=metrics, queries=3, pairs=4
    )
    level = types_pb2.TreeMetrics(recall_at_25=0.25, recall_at_25_micro=0.5, all_correct_at_25=0.125, trees=8, leaves=9)
    given = {"strict": metrics, "paper": metrics, "queries": 1, "model_version": "q0", "generation": "g1"}
    return types_pb2.EvaluationReport(
        **{**given, "parts": [part], "hypothesis_alone": level, "gold_tree": level, **fields}
    )


async def test_the_trainer_gets_queries_training_queries_and_trees(aeenc, fleet, trees):
    fleet.trainer.report = report()
    words = ("evaluate", "--data", trees, "--keep")
    ended = await aeenc(*words, "--json", "--label", "canary")
    assert (ended.code, ended.stderr) == (0, "")
    [asked] = fleet.trainer.asked
    assert (asked.config.corpus, asked.config.model.label) == (corpus_name(Dataset.load(trees)), "canary")
    assert ended.json.items() >= {"corpus": asked.config.corpus, "split": "dev", **report_dict(read(report()))}.items()
    assert [query.text for query in asked.queries] == ["ice floats"]
    # The first says that there is training; the others have no text in common with what is asked.
    assert [query.text for query in asked.training] == ["the nail moves"]
    assert [(tree.hypothesis, list(tree.leaves)) for tree in asked.trees] == [("ice floats", ["ice is light"])]
    assert (asked.config.HasField("retrieval"), asked.config.strict_only) == (False, False)
    assert ended.json["parts"]["premise unseen"]["strict"]["MAP"] == 0.5
    assert ended.json["trees"]["gold_tree"]["AllCorrect@25"] == 0.125
    encoded = len(fleet.encoder.encoded_premises)
    shown = (await aeenc(*words, "--all")).stdout
    assert len(fleet.encoder.encoded_premises) == encoded, "the corpus is built once"
    for figure in ("premise unseen", "hypothesis alone", "0.125", "NDCG@10", "strict", "paper"):
        assert figure in shown
    shown = (await aeenc(*words)).stdout
    assert all(figure in shown for figure in ("MAP", "Hit@10"))
    assert not [figure for figure in ("premise unseen", "hypothesis alone", "NDCG") if figure in shown]


async def test_an_encoder_is_compared_with_the_one_before(aeenc, fleet, trees):
    ranks = [types_pb2.GoldRanks(strict=[n % 3 + 1]) for n in range(20)]
    fleet.trainer.reports = [
        report(ranks=[types_pb2.GoldRanks(strict=[0]), *[types_pb2.GoldRanks(strict=[9])] * 19], model_version="q8"),
        report(ranks=[types_pb2.GoldRanks(strict=[1]), *ranks[1:]]),
    ]
    ended = await aeenc.json("evaluate", "--data", trees, "--against", "previous")
    told = ended["against"]
    assert (told["version"], told["queries"], told["outcome"]) == ("q8", 20, "better")
    assert told["version_map"] == pytest.approx(19 / 9 / 20)
    other, own = fleet.trainer.asked
    assert (other.config.model.label, other.config.ranks, own.config.ranks) == ("previous", True, True)
    fleet.trainer.reports = [report(ranks=ranks, model_version="q8"), report(ranks=ranks)]
    shown = (await aeenc("evaluate", "--data", trees, "--against", "previous")).stdout
    assert "against q8, MAP 0.625: no difference shown (+.000, p 1.000)" in shown


async def test_a_corpus_that_another_evaluation_deletes_meanwhile_is_told(aeenc, fleet, trees, monkeypatch):
    monkeypatch.setattr(evaluation, "ensure_corpus", lambda *_, **__: "eval-gone")
    ended = await aeenc("--json", "evaluate", "--data", trees)
    assert (ended.code, "'eval-gone' was deleted meanwhile" in ended.error["message"]) == (4, True)


async def test_figures_stand_beside_those_with_premises_folded_that_say_the_same(aeenc, fleet, trees):
    metrics = types_pb2.RetrievalMetrics(map=0.75)
    fleet.trainer.reports = [report(), report(strict=metrics, paper=metrics, candidates=7)] * 2
    words = ("evaluate", "--data", trees, "--fold-same", "--keep")
    ended = await aeenc("--json", *words)
    assert ended.code == 0, ended.stderr
    assert (ended.json["strict"]["MAP"], ended.json["folded"]["strict"]["MAP"]) == (0.5, 0.75)
    plain, folded = fleet.trainer.asked
    assert folded.config.corpus == f"{plain.config.corpus}-folded"
    assert list(folded.queries) == list(plain.queries)
    shown = (await aeenc(*words, "--all")).stdout
    for column in ("strict, folded", "paper, folded", "premise unseen, folded", "hypothesis alone, folded"):
        assert column in shown
    ended = await aeenc(*words, "--corpus", "science")
    assert (ended.code, "--fold-same builds a corpus of its own" in ended.stderr) == (2, True)


async def test_a_folded_corpus_is_listed_only_for_strata_and_for_what_is_accessible(aeenc, fleet, trees, monkeypatch):
    def refused(_client, *_names, **_options):
        raise errors.Unavailable("premises are listed")

    fleet.trainer.report = report()
    words = ("--json", "evaluate", "--data", trees, "--fold-same")
    monkeypatch.setattr(IndexClient, "list_premises", refused)
    ended = await aeenc(*words, "--conditioned")
    assert ended.code == 0, ended.stderr
    assert ended.json["folded"]["strict"]["MAP"] == 0.5
    assert "premises are listed" in (await aeenc(*words)).stderr


def write_lemmas(folder: Path) -> Path:
    """Lemmas in BEIR's layout, two of which say the same as an earlier one; some queries stand before these."""
    facts = ["ice is light", "iron is magnetic", "The ice is light", "water is wet", "An iron is magnetic"]
    asked = {"q1": "ice floats", "q2": "iron sank", "q3": "ice swims"}
    before = {"q1": "d3", "q2": "d5", "q3": "d4"}
    gold = {"q1": ["d1", "d2"], "q2": ["d2", "d4"], "q3": ["d1", "d3"]}
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(facts, start=1)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({"_id": name, "text": text, "before": before[name]}) for name, text in asked.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    rows = [f"{query}\t{premise}\t1" for query, premises in gold.items() for premise in premises]
    (folder / "qrels" / "dev.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder


async def test_what_stands_before_a_folded_premise_stays_accessible(aeenc, fleet, tmp_path):
    fleet.trainer.report = report()
    data = write_lemmas(tmp_path / "lemmas")
    ended = await aeenc("--json", "evaluate", "--data", data, "--fold-same")
    assert ended.code == 0, ended.stderr
    plain, folded = ({one.text: one.before_id for one in asked.queries} for asked in fleet.trainer.asked)
    assert plain == {"ice floats": "d3", "iron sank": "d5", "ice swims": "d4"}
    assert folded == {"ice floats": "d4", "iron sank": "", "ice swims": "d4"}, "a folded one stands with the first"


async def test_strata_stand_beside_those_with_premises_folded(aeenc, fleet, tmp_path):
    def ranked(*strict):
        return report(ranks=[types_pb2.GoldRanks(strict=one) for one in strict])

    fleet.trainer.reports = [ranked([1, 2], [1, 2], [3, 4]), ranked([1, 2], [1, 2], [1])] * 2
    words = ("evaluate", "--data", write_lemmas(tmp_path / "lemmas"), "--fold-same", "--keep")
    told = (await aeenc("--json", *words)).json
    plain, folded = (
        {name: (one["pairs"], round(one["MAP"], 3)) for name, one in of["by"]["overlap"].items()}
        for of in (told, told["folded"])
    )
    assert (plain["up to .25"], folded["up to .25"]) == ((4, 0.806), (3, 1.0)), "what says the same is one pair"
    assert plain["no shared word"] == folded["no shared word"] == (2, 1.0)
    shown = (await aeenc(*words)).stdout
    assert "up to .25, folded" in shown


async def test_rated_facts_are_evaluated_with_their_grades(aeenc, fleet, index, tmp_path):
    recall = types_pb2.GradeRecall(grade=6, pairs=2, recall_at_10=0.125, recall_at_200=1)
    graded = types_pb2.GradedMetrics(ndcg_linear=0.375, oracle_ndcg_exponential=0.875, recalls=[recall])
    fleet.trainer.report = report(graded=graded)
    built = await aeenc.json("evaluate", "--data", RATED, "--keep")
    fleet.trainer.report = report(graded=graded, generation=await active(index, built["corpus"]))
    qrels = tmp_path / "qrels"
    ended = await aeenc.json("evaluate", "--data", RATED, "--qrels", qrels)
    asked = fleet.trainer.asked[-1]
    dataset = load_data(RATED)
    told = {one.text: dict(zip(one.premises, one.grades, strict=True)) for one in asked.queries}
    assert told == dict(dataset.queries("dev"))
    assert {one.text for one in asked.training} == {text for text, _ in dataset.queries("train")}
    ids = {one.text: one.id for one in dataset.candidates()}
    assert read_grades(qrels) == {
        name: {ids[fact]: grade for fact, grade in told[text].items()} for name, text in dataset.hypotheses("dev")
    }
    assert ended["graded"]["NDCG linear"] == 0.375
    assert ended["graded"]["recall_by_grade"]["6"]["10"] == 0.125
    shown = (await aeenc("evaluate", "--data", RATED)).stdout
    for words in ("by grades", "oracle NDCG@200 exponential", "0.875", "recall of grade", "0.1250"):
        assert words in shown


async def test_a_mode_is_asked_for_as_it_was_given(aeenc, fleet, trees):
    fleet.trainer.report = report(paper=None)
    words = ("--mode", "hybrid", "--lexical-weight", 0.25, "--prior", 0.5, "--rerank", 30, "--protocol", "strict")
    words += ("--negative-feedback", 0.125, "--rerank-weight", 0.375)
    told = await aeenc.json("evaluate", "--data", trees, "--no-trees", *words)
    config = fleet.trainer.asked[0].config
    assert (config.retrieval.mode, config.retrieval.rerank) == (index_pb2.RETRIEVE_MODE_HYBRID, 30)
    assert (config.retrieval.fusion.lexical_weight, config.retrieval.prior) == (0.25, 0.5)
    assert (config.retrieval.negative_feedback, config.retrieval.rerank_weight) == (0.125, 0.375)
    assert (config.strict_only, len(fleet.trainer.asked[0].trees)) == (True, 0)
    assert "paper" not in told
    await aeenc("evaluate", "--data", trees, "--conditioned")
    asked = fleet.trainer.asked[-1]
    assert (asked.config.conditioned, len(asked.trees)) == (True, 0)


async def active(index, corpus: str) -> str:
    """The generation of a corpus that is searched."""
    return {one.corpus: one.active.id async for one in index.list_corpora()}[corpus]


@pytest.mark.parametrize("mode", ["dense", "lexical"])
async def test_runs_and_qrels_are_what_other_tools_read(aeenc, fleet, index, trees, mode, tmp_path):
    fleet.trainer.report = report()
    built = await aeenc.json("evaluate", "--data", trees, "--keep")
    generation = await active(index, built["corpus"])
    fleet.trainer.report = report(model_version="q0" if mode == "dense" else "", generation=generation)
    fleet.trainer.asked.clear()
    files = ("--run", tmp_path / "run", "--qrels", tmp_path / "qrels")
    await aeenc.json("evaluate", "--data", trees, "--split", "train", "--mode", mode, *files)
    assert not fleet.trainer.asked[0].training, "train is not split by train"
    dataset = Dataset.load(trees)
    ids = {candidate.text: candidate.id for candidate in dataset.candidates()}
    gold = {query_id(query.text): {ids[text]: 1.0 for text in query.gold} for query in dataset.queries("train")}
    assert read_grades(tmp_path / "qrels") == gold
    run = read_run(tmp_path / "run")
    assert set(run) == set(gold)
    assert ids["the magnet pulls the nail"] not in run[query_id("the magnet pulls the nail")]
    qrels = ir_measures.read_trec_qrels(str(tmp_path / "qrels"))
    assert 0 < ir_measures.calc_aggregate([AP], qrels, ir_measures.read_trec_run(str(tmp_path / "run")))[AP] <= 1


async def test_qrels_have_the_ids_of_a_corpus_that_has_its_own(aeenc, fleet, trees, tmp_path):
    texts = [candidate.text for candidate in Dataset.load(trees).candidates()]
    facts = tmp_path / "facts.jsonl"
    facts.write_text("".join(json.dumps({"id": f"mine-{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    built = await aeenc.json("corpus", "build", "mine", "--facts", facts)
    fleet.trainer.report = report(generation=built["generation"])
    files = ("--run", tmp_path / "run", "--qrels", tmp_path / "qrels")
    await aeenc.json("evaluate", "--data", trees, "--corpus", "mine", *files)
    [gold] = read_grades(tmp_path / "qrels").values()
    assert gold == {f"mine-{texts.index('ice is light')}": 1.0}
    assert set(gold) <= set(read_run(tmp_path / "run")[query_id("ice floats")])


async def test_figures_are_told_and_what_keeps_their_qrels_or_run_from_being_written_is_named(
    aeenc, fleet, trees, tmp_path
):
    (tmp_path / "facts.jsonl").write_text(json.dumps({"id": "mine", "text": "ice is cold"}) + "\n")
    built = await aeenc.json("corpus", "build", "mine", "--facts", tmp_path / "facts.jsonl")
    fleet.trainer.report = report(generation=built["generation"])
    told = "gold premise 'ice is light' is not in generation"
    for option, to, code, message in (("--qrels", tmp_path / "qrels", 4, told), ("--run", "/proc/none", 2, "/proc")):
        ended = await aeenc("--json", "evaluate", "--data", trees, "--corpus", "mine", option, to)
        assert (ended.code, message in ended.error["message"]) == (code, True), ended
        assert ended.json["generation"] == built["generation"], "what was measured is told in any case"
    assert not (tmp_path / "qrels").exists()


async def test_a_run_is_of_the_generation_that_was_measured_although_another_is_searched_by_now(
    aeenc, fleet, index, trees, tmp_path
):
    fleet.trainer.report = report()
    corpus = (await aeenc.json("evaluate", "--data", trees, "--keep"))["corpus"]
    measured = await active(index, corpus)
    gone = {one.text: one.id for one in Dataset.load(trees).candidates()}["ice is light"]
    await index.build(corpus, [], base_generation=measured, delete_ids=[gone])
    assert await active(index, corpus) != measured
    fleet.trainer.report = report(generation=measured)
    await aeenc.json("evaluate", "--data", trees, "--run", tmp_path / "run")
    assert gone in read_run(tmp_path / "run")[query_id("ice floats")]


async def test_a_directory_with_one_split_and_no_facts_is_enough(aeenc, fleet, trees):
    fleet.trainer.report = report()
    (trees / "dataset" / "task_1" / "train.jsonl").unlink()
    shutil.move(trees / "dataset" / "task_1" / "dev.jsonl", trees / "dataset" / "task_1" / "test.jsonl")
    ended = await aeenc("--json", "evaluate", "--data", trees, "--split", "test")
    assert (ended.code, ended.json["split"]) == (0, "test")
    assert not fleet.trainer.asked[0].training


async def test_a_prior_learns_from_train_on_a_corpus_of_the_commands_own(aeenc, fleet, trees):
    fleet.trainer.report = report()
    words = ("evaluate", "--data", trees, "--mode", "lexical", "--prior", 0.5, "--keep")
    told = await aeenc.json(*words)
    found = await aeenc.json("retrieve", told["corpus"], "nails move", "--prior", 1, "-k", 3)
    assert "forces move things" in [hit["text"] for hit in found["results"][0]["premises"]]


async def test_a_prior_without_the_split_that_it_learns_from_is_refused_before_anything_is_built(aeenc, index, trees):
    (trees / "dataset" / "task_1" / "train.jsonl").unlink()
    words = ("--mode", "lexical", "--prior", 0.5, "--keep")
    ended = await aeenc("--json", "evaluate", "--data", trees, *words)
    assert (ended.code, ended.error["status"]) == (2, "INVALID_ARGUMENT")
    assert "(it has dev); add that split, name a corpus that has explanations by --corpus" in ended.error["message"]
    assert not [one async for one in index.list_corpora()]


def test_rounds_are_a_table():
    rounds = [
        Round(0, version="q0", report=report_dict(read(report()))),
        Round(1, version="q1", report=report_dict(read(report()))),
        Round(2, run="r2", positives=9),
    ]
    rounds[1].positives, rounds[1].negatives = 1200, 30
    made = rounds_table(rounds)
    assert [str(column.header) for column in made.columns][1:5] == ["version", "pairs", "MAP", "NDCG"]
    assert [str(cell) for cell in made.columns[2].cells] == ["", "1,200+30"]
    assert report_tables(report_dict(read(report())))[0].row_count == 7


def test_two_reports_are_compared_metric_by_metric():
    before, after = report_dict(read(report())), report_dict(read(report()))
    after["strict"]["MAP"] = 0.625
    made = metrics_table(before, after)
    assert [str(column.header) for column in made.columns][1:4] == ["strict before", "strict after", "strict change"]
    assert [str(next(iter(column.cells))) for column in made.columns][:4] == ["MAP", "0.500", "0.625", "+0.125"]


async def test_an_evaluation_deletes_what_was_built_for_it_unless_it_is_to_be_kept(aeenc, fleet, index, trees):
    fleet.trainer.report = report()

    async def corpora():
        named = [one.corpus async for one in index.list_corpora()]
        return {name: [one.held_by async for one in index.list_generations(name)] for name in named}

    command = ("evaluate", "--data", trees)
    assert (await aeenc("--json", *command, "--prior", 0.1)).code == 0
    assert await corpora() == {}
    fleet.trainer.failure = errors.FailedPrecondition("no")
    assert (await aeenc("--json", *command)).code == 4
    assert await corpora() == {}
    fleet.trainer.failure = None
    kept = (await aeenc.json(*command, "--keep"))["corpus"]
    for _ in range(2):  # neither was it made by these
        assert (await aeenc("--json", *command)).code == 0
        assert await corpora() == {kept: [()]}


async def test_an_evaluation_leaves_what_another_one_is_using(aeenc, fleet, index, trees, monkeypatch):
    fleet.trainer.report = report()

    async def held():
        [one] = [one async for one in index.list_generations(corpus_name(Dataset.load(trees)))]
        return one

    evaluate = BlockingTrainerClient.evaluate

    def with_another(self, *args, **options):
        with Client(index=fleet.index) as other:
            name = corpus_name(Dataset.load(trees))
            other.index.hold(name, next(other.index.list_corpora()).active.id, "evaluate-other")
        return evaluate(self, *args, **options)

    monkeypatch.setattr(BlockingTrainerClient, "evaluate", with_another)
    assert (await aeenc("--json", "evaluate", "--data", trees)).code == 0
    left = await held()
    assert (left.active, left.held_by) == (True, ("evaluate-other",))


async def test_quality_is_told_by_overlap_and_where_asked_by_depth_and_split(aeenc, fleet, trees):
    queries = [one for one in Dataset.load(trees).queries("train") if one.text not in one.gold]
    fleet.trainer.report = report(ranks=[types_pb2.GoldRanks(strict=range(1, len(one.gold) + 1)) for one in queries])
    words = ("evaluate", "--data", trees, "--split", "train")
    told = (await aeenc.json(*words))["by"]
    assert fleet.trainer.asked[-1].config.ranks
    pairs = sum(len(one.gold) for one in queries)
    assert list(told) == ["overlap"]
    assert sum(band["pairs"] for band in told["overlap"].values()) == pairs
    assert {band["MAP"] for band in told["overlap"].values()} == {1.0}
    told = (await aeenc.json(*words, "--by", "depth", "--by", "split"))["by"]
    assert [sum(band["pairs"] for band in told[name].values()) for name in ("depth", "split")] == [pairs, pairs]
    assert "2 steps" in told["depth"]
    shown = (await aeenc(*words, "--by", "split")).stdout
    assert all(part in shown for part in ("by overlap (strict)", "no shared word", "by split (strict)"))
