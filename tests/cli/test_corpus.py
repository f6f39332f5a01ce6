"""Building and retrieving through the command line: what programs get, what people see, which files are refused."""

import json
from contextlib import contextmanager

import pytest

from aeenc.cli.output import Output
from aeenc.trees import content_id
from aeenc.v1 import types_pb2
from services.corpus.active import write_active
from services.index.catalogue.catalogue import Catalogue
from services.index.values import ReplicaState
from services.launcher.fleet import Fleet
from support.worlds.index_world import FACTS, SPACE, VERSION
from support.worlds.index_world import facts as facts_of_science


@pytest.fixture
def facts(tmp_path):
    path = tmp_path / "facts.txt"
    path.write_text("\n".join([*FACTS, "", FACTS[0], ""]))
    return path


async def test_a_corpus_of_one_fact_a_line_is_built_and_searched(aeenc, fleet, facts):
    built = await aeenc("--json", "corpus", "build", "science", "--facts", facts)
    assert (built.code, built.stderr) == (0, "")
    assert built.json["corpus"] == "science"
    assert (built.json["premises"], built.json["active"]) == (len(FACTS), True)
    assert built.json["seconds"] > 0
    assert built.json["facts_per_s"] > 0
    found = await aeenc("--json", "retrieve", "science", "heat melts frozen ice", "rain and clouds", "-k", 2)
    assert (found.code, found.stderr) == (0, "")
    assert (found.json["model_version"], found.json["generation"]) == (VERSION, built.json["generation"])
    first, second = found.json["results"]
    assert (first["text"], first["premises"][0]["text"]) == ("heat melts frozen ice", "heat melts ice")
    assert second["premises"][0]["text"] == "rain falls from clouds"
    assert len(second["premises"]) == 2


async def test_people_get_tables_on_stdout_and_progress_on_stderr(aeenc, fleet, facts):
    built = await aeenc("corpus", "build", "science", "--facts", facts)
    assert built.code == 0
    assert "science" in built.stdout
    assert "building" not in built.stdout
    assert "facts/s" in built.stderr
    found = await aeenc("retrieve", "science", "heat melts [bold]ice[/bold]")
    assert found.code == 0
    assert "heat melts [bold]ice[/bold]" in found.stdout
    assert "heat melts ice" in found.stdout


async def test_up_says_what_can_be_done_next_with_the_corpora_that_there_are(
    aeenc, fleet, facts, monkeypatch, tmp_path
):
    monkeypatch.setattr(Fleet, "up", lambda *_: {"index": fleet.index})
    assert "build a corpus: aeenc corpus build" in (await aeenc("up", "--home", tmp_path / "home")).stdout
    await aeenc("corpus", "build", "science", "--facts", facts)
    told = (await aeenc("up", "--home", tmp_path / "home")).stdout
    assert ("search: aeenc retrieve science TEXT" in told, "build a corpus" in told) == (True, False)


async def test_ids_of_what_is_found_are_whole_in_a_narrow_terminal(aeenc, fleet, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    ids = [f"0123456789abcdef0123456789abcdef-{number}" for number in range(3)]
    facts = [json.dumps({"id": one, "text": f"heat melts {one[-1]} kinds of ice in spring"}) for one in ids]
    (tmp_path / "long.jsonl").write_text("\n".join(facts))
    assert (await aeenc("corpus", "build", "long", "--facts", tmp_path / "long.jsonl")).code == 0
    found = await aeenc("retrieve", "long", "heat melts ice")
    assert all(one in found.stdout for one in ids), found.stdout


async def test_texts_too_long_are_cut_where_asked(aeenc, fleet, facts):
    await aeenc("corpus", "build", "science", "--facts", facts)
    for flags, truncate in (([], types_pb2.TRUNCATE_ERROR), (["--truncate"], types_pb2.TRUNCATE_END)):
        assert (await aeenc("retrieve", "science", "ice", *flags)).code == 0
        assert fleet.encoder.requests[-1].truncate == truncate
    fleet.encoder.most_chars = 12
    refused = await aeenc("corpus", "build", "cut", "--facts", facts)
    assert (refused.code, "has 300 tokens" in refused.stderr) == (2, True)
    cut = await aeenc("corpus", "build", "cut", "--facts", facts, "--truncate")
    assert (cut.code, "premises are too long for the model, which did not see their ends" in cut.stderr) == (0, True)
    added = ("corpus", "add", "cut", "a fact that is far too long")
    assert (await aeenc("--json", *added)).code == 2
    assert (await aeenc.json(*added, "--truncate"))["premises"] == len(FACTS) + 1


async def test_json_is_taken_wherever_it_stands_but_not_from_the_texts(aeenc, fleet, facts):
    await aeenc("corpus", "build", "science", "--facts", facts)
    found = await aeenc("retrieve", "science", "ice", "--json")
    assert found.json["results"][0]["text"] == "ice"
    found = await aeenc.json("retrieve", "science", "--", "--json")
    assert found["results"][0]["text"] == "--json"


async def test_features_order_what_was_found_anew(aeenc, fleet, facts):
    await aeenc("corpus", "build", "science", "--facts", facts)
    words = ("retrieve", "science", "heat melts frozen ice", "-k", 50)
    for mode in ("dense", "hybrid"):
        found = await aeenc("--json", *words, "--mode", mode, "--features", '{"rank": 1}')
        turned = await aeenc("--json", *words, "--mode", mode, "--features", '{"rank": -1}')
        first, last = ([hit["id"] for hit in one.json["results"][0]["premises"]] for one in (found, turned))
        assert first == last[::-1]
    for mode, option in (("lexical", ("--features", '{"rank": 1}')), ("dense", ("--lexical-weight", 0.5))):
        refused = await aeenc("--json", *words, "--mode", mode, *option)
        assert (refused.code, "--mode hybrid" in refused.error["message"]) == (2, True)


async def test_premises_are_left_out_and_those_accepted_are_taken_as_known(aeenc, index):
    await index.build("science", facts_of_science())
    words = ("frogs hunt and heat melts", "frogs")
    expected = await index.retrieve("science", words, accepted=[["f3"]] * 2, exclude=["f0", "f1"], mode="lexical")
    options = ("retrieve", "science", *words, "--mode", "lexical")
    plain = await aeenc.json(*options)
    found = await aeenc.json(*options, "--exclude", "f0", "--exclude", "f1", "--accepted", "f3")
    scores = [[(hit["id"], hit["score"]) for hit in one["premises"]] for one in found["results"]]
    assert scores == [[(hit.id, hit.score) for hit in hits] for hits in expected]
    assert not {"f0", "f1"} & {name for hits in scores for name, _ in hits}
    assert [hit["score"] for hit in plain["results"][0]["premises"]] != [score for _, score in scores[0]]


async def test_the_order_of_rounds_is_said_to_be_the_ranking(aeenc, fleet, facts):
    await aeenc("corpus", "build", "science", "--facts", facts)
    for mode, said in (("iterative_lexical", True), ("lexical", False)):
        found = await aeenc("retrieve", "science", "heat melts frozen ice", "--mode", mode)
        assert ("the order is the ranking" in " ".join(found.stdout.split())) == said


async def test_corpora_and_generations_are_listed_and_deleted(aeenc, index, facts, tmp_path):
    assert "no corpora" in (await aeenc("corpus", "list")).stdout
    build = ("corpus", "build", "science", "--facts")
    first = (await aeenc.json(*build, facts))["generation"]
    (tmp_path / "more.txt").write_text("ice is cold\n")
    second = (await aeenc.json(*build, tmp_path / "more.txt"))["generation"]
    (serving,) = (await aeenc.json("corpus", "list"))["corpora"]
    assert (serving["corpus"], serving["generation"], serving["premises"]) == ("science", second, 1)
    kept = (await aeenc.json("corpus", "list", "science"))["generations"]
    assert {one["generation"]: one["active"] for one in kept} == {first: False, second: True}
    shown = (await aeenc("corpus", "list", "science")).stdout
    assert all(told in shown for told in (first, second, "yes"))
    for holder in ("run-a", "run-b"):
        await index.hold("science", first, holder)
    kept = (await aeenc.json("corpus", "list", "science"))["generations"]
    assert {one["generation"]: one["held_by"] for one in kept} == {first: ["run-a", "run-b"], second: []}
    shown = (await aeenc("corpus", "list", "science")).stdout
    assert all(told in shown for told in (first, "run-a", "run-b"))
    for generation in (first, second):  # one is held, the other serves
        refused = await aeenc("--json", "corpus", "delete", "science", generation)
        assert (refused.code, refused.error["status"]) == (4, "FAILED_PRECONDITION")
    deleted = await aeenc("--json", "corpus", "delete", "science", first, "--despite", "run-a", "--despite", "run-b")
    assert deleted.json == {"corpus": "science", "generation": first, "deleted": True}
    assert [one["generation"] for one in (await aeenc.json("corpus", "list", "science"))["generations"]] == [second]


async def test_a_weight_adds_the_cross_encoders_score_to_the_first_one(aeenc, fleet, facts):
    await aeenc("corpus", "build", "science", "--facts", facts)
    words = ("retrieve", "science", "heat melts frozen ice", "-k", 3)
    first, found = await aeenc("--json", *words), await aeenc("--json", *words, "--rerank", 3, "--rerank-weight", 0.25)
    assert found.code == 0, found.stderr
    before, after = (
        {hit["text"]: hit["score"] for hit in one.json["results"][0]["premises"]} for one in (first, found)
    )
    assert after == pytest.approx({text: score + 0.25 * text.count("e") for text, score in before.items()}, rel=1e-6)
    assert list(after) == sorted(after, key=lambda text: -after[text])
    refused = await aeenc("--json", *words, "--rerank-weight", 0.25)
    assert (refused.code, refused.error["status"]) == (2, "INVALID_ARGUMENT")
    assert "--rerank-weight: is 0.25 and rerank is 0" in refused.error["message"]


async def test_a_corpus_of_trees_keeps_splits_and_waits_for_activation_when_told(aeenc, fleet, trees):
    built = await aeenc("--json", "corpus", "build", "trees", "--data", trees, "--no-activate")
    assert (built.code, built.json["premises"], built.json["active"]) == (0, 7, False)
    assert "none serves" in (await aeenc("corpus", "list")).stdout
    assert built.json["generation"] in (await aeenc("corpus", "list", "trees")).stdout
    found = await aeenc("--json", "retrieve", "trees", "ice")
    assert (found.code, found.error["status"]) == (2, "NOT_FOUND")
    words = ("corpus", "activate", "trees")
    assert (await aeenc("--json", *words, "g0")).code == 2
    activated = await aeenc.json(*words, built.json["generation"])
    expected = {"generation": built.json["generation"], "previous": "", "premises": 7, "behind": []}
    assert activated == {"corpus": "trees", **expected}
    found = await aeenc.json("retrieve", "trees", "ice", "--split", "dev")
    assert [hit["text"] for hit in found["results"][0]["premises"]] == ["ice is light"]
    for also in ((), ("--split", "dev")):  # the second finds premises
        refused = await aeenc("--json", "retrieve", "trees", "ice", "--split", "tset", *also)
        assert refused.code == 2
        assert refused.error["message"].startswith("--split tset: no premise of corpus 'trees' has it; known: ")


async def test_a_build_says_that_it_is_indexing(aeenc, fleet, facts, monkeypatch):
    shown: list[str] = []

    @contextmanager
    def progress(_out, text, _unit):
        yield lambda _done, _total, now: shown.append(now or text)

    monkeypatch.setattr(Output, "progress", progress)
    await aeenc("corpus", "build", "science", "--facts", facts)
    assert list(dict.fromkeys(shown)) == ["building science", "indexing science"]


def flip(store, generation, name):
    """Changes a byte in the middle of a file of a generation of corpus science, and leaves its size."""
    path = store.root / "generations/science" / generation / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "given", "remedy"),
    [
        ("vectors.npy", (), ""),
        ("premises.jsonl", ("--facts", "FACTS"), "give them by --data DIR or --facts FILE"),
        ("manifest.json", ("--facts", "FACTS", "--space", SPACE), "name it by --space"),
    ],
)
async def test_a_damaged_generation_is_found_and_repaired_from_what_is_left_and_given(
    aeenc, fleet, facts, artifact_store, name, given, remedy
):
    words = ("--json", "corpus")
    built = (await aeenc(*words, "build", "science", "--facts", facts)).json["generation"]
    verify, repair = ((*words, word, "science") for word in ("verify", "repair"))
    sound = await aeenc(*verify)
    assert (sound.code, sound.json["generation"], sound.json["sound"]) == (0, built, True)
    assert (await aeenc(*repair)).json == {"corpus": "science", "damaged": "", "generation": built, "active": True}
    flip(artifact_store, built, name)
    damaged = await aeenc(*verify)
    assert (damaged.code, damaged.error["status"], name in damaged.error["message"]) == (5, "DATA_LOSS", True)
    given = [facts if word == "FACTS" else word for word in given]
    if remedy:
        refused = await aeenc(*repair, *given[:-2])
        assert (refused.code, remedy in refused.error["message"]) == (5, True)
    mended = await aeenc(*repair, *given)
    assert (mended.code, mended.json["damaged"], mended.json["active"]) == (0, built, True), mended.stderr
    assert (await aeenc(*verify, "--generation", mended.json["generation"])).json["sound"]
    assert (await aeenc(*verify, "--generation", "g0")).code == 2
    found = await aeenc.json("retrieve", "science", FACTS[0], "-k", 1)
    assert found["generation"] == mended.json["generation"]


async def test_replicas_that_do_not_follow_an_activation_are_named(aeenc, fleet, facts, monkeypatch):
    built = await aeenc.json("corpus", "build", "science", "--no-activate", "--facts", facts)

    async def reached(*_: object) -> tuple[ReplicaState, ...]:
        return ReplicaState("one", "g1", SPACE), ReplicaState("slow", "g0", SPACE, behind=True, reason="it hangs")

    monkeypatch.setattr(Catalogue, "reached", reached)
    moved = await aeenc("--json", "corpus", "activate", "science", built["generation"])
    assert (moved.code, moved.json["behind"]) == (0, ["slow"])
    assert "index slow still serves g0: it hangs" in moved.stderr


async def test_an_active_generation_that_does_not_open_is_repaired(aeenc, fleet, facts, tmp_path, artifact_store):
    build = ("corpus", "build", "science", "--no-activate", "--facts", facts)
    built = (await aeenc.json(*build))["generation"]
    path = artifact_store.root / "generations/science" / built / "vectors.npy"
    path.write_bytes(path.read_bytes()[:-1])
    write_active(artifact_store, "science", built)  # the index finds it as it is after a restart
    (tmp_path / "others.txt").write_text("ice is cold\n")
    words = ("corpus", "repair", "science", "--facts", tmp_path / "others.txt")
    mended = await aeenc("--json", *words)
    assert (mended.code, mended.json["damaged"], mended.json["active"]) == (0, built, True), mended.stderr
    found = await aeenc.json("retrieve", "science", "ice", "-k", 1)
    assert found["generation"] == mended.json["generation"] != built


async def test_repair_takes_facts_as_build_does(aeenc, fleet, tmp_path, artifact_store):
    rows = "".join(json.dumps({"nr": f"c{n}", "claim": text}) + "\n" for n, text in enumerate(FACTS))
    (tmp_path / "facts.jsonl").write_text(rows)
    columns = ("--format", "jsonl", "--id-column", "nr", "--text-column", "claim")
    built = await aeenc.json("corpus", "build", "science", "--facts", "-", *columns, typed=rows)
    for source, typed in (("-", rows), (f"file://{tmp_path}/facts.jsonl", "")):
        flip(artifact_store, built["generation"], "premises.jsonl")
        words = ("corpus", "repair", "science", "--facts", source, *columns)
        mended = await aeenc("--json", *words, typed=typed)
        assert (mended.code, mended.json["generation"]) == (0, built["generation"]), mended.stderr


async def test_a_corpus_is_built_from_a_csv_file_and_from_standard_input(aeenc, fleet, tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("number,body\n1,ice is cold\n2,fire is hot\n")
    words = ("--id-column", "number", "--text-column", "body")
    built = await aeenc("--json", "corpus", "build", "science", "--facts", path, *words)
    assert (built.code, built.json["premises"], built.json["facts_per_s"] > 0) == (0, 2, True)
    found = await aeenc.json("retrieve", "science", "ice", "-k", 1)
    assert found["results"][0]["premises"][0]["id"] == "1"
    typed = await aeenc("--json", "corpus", "build", "typed", "--facts", "-", typed="one fact\nanother\n")
    assert (typed.code, typed.json["premises"], typed.json["facts_per_s"] > 0) == (0, 2, True)
    path.write_text("number,body\n1,ice is cold\n2,\n")
    refused = await aeenc("corpus", "build", "science", "--facts", path, *words)
    assert (refused.code, f"{path}:3: `body` must be" in refused.stderr) == (2, True)


async def test_what_a_run_accepted_becomes_the_prior_of_retrieval(aeenc, index, sampler):
    await index.build("science", facts_of_science())
    pairs = [
        types_pb2.Pair(query="frogs hunt", premise=FACTS[3], premise_id="f3", sign=types_pb2.PAIR_SIGN_POSITIVE),
        types_pb2.Pair(query="frogs hunt", premise=FACTS[4], premise_id="f4", sign=types_pb2.PAIR_SIGN_NEGATIVE),
        types_pb2.Pair(query="frogs hunt", premise=FACTS[0], premise_id="f0", sign=types_pb2.PAIR_SIGN_POSITIVE),
        types_pb2.Pair(query="frogs hunt", premise=FACTS[0], premise_id="f0", sign=types_pb2.PAIR_SIGN_NEGATIVE),
    ]
    run = (await sampler.import_pairs("science", pairs)).run_id
    explain = ("corpus", "explain", "science")
    told = await aeenc("--json", *explain, "--run", run)
    assert (told.code, told.json) == (0, {"corpus": "science", "put": 1, "known": 1})
    found = await aeenc.json("retrieve", "science", "the frog hunts", "-k", 2, "--prior", 1)
    scores = {premise["id"]: premise["score"] for premise in found["results"][0]["premises"]}
    assert scores.pop("f3") == 1.0
    assert list(scores.values()) == [0.0], "what was refused or is in dispute is no explanation"


async def test_single_facts_are_added_and_removed(aeenc, fleet, facts, tmp_path):
    built = await aeenc.json("corpus", "build", "science", "--facts", facts)
    (tmp_path / "more.jsonl").write_text('{"id": "m1", "text": "salt is a mineral", "tags": ["cooking"]}\n')
    added = await aeenc.json("corpus", "add", "science", "sugar is sweet", "flour is white")
    assert added == {
        "corpus": "science", "generation": added["generation"], "premises": len(FACTS) + 2, "active": True,
        "before": built["generation"],
    }  # fmt: skip
    more = await aeenc.json("corpus", "add", "science", "--file", tmp_path / "more.jsonl")
    assert (more["premises"], more["before"]) == (len(FACTS) + 3, added["generation"])
    found = await aeenc.json("retrieve", "science", "mineral", "--tags", "cooking")
    assert [hit["id"] for hit in found["results"][0]["premises"]] == ["m1"]
    again = await aeenc.json("corpus", "add", "science", "sugar is sweet")
    assert again["generation"] == again["before"] == more["generation"]
    removed = await aeenc.json("corpus", "remove", "science", "m1", content_id("sugar is sweet"))
    assert removed["premises"] == len(FACTS) + 1
    for wrong, told in (
        (("add", "science"), "give either texts or --file"),
        (("add", "science", "a fact", "--file", facts), "give either texts or --file"),
        (("remove", "science", "m1"), "no premise 'm1'"),
        (("add", "scinece", "a fact"), "no corpus 'scinece' serves"),
    ):
        refused = await aeenc("--json", "corpus", *wrong)
        assert (refused.code, told in refused.error["message"]) == (2, True), refused.error


async def test_a_corpus_is_deleted_as_a_whole(aeenc, index, facts):
    first = (await aeenc.json("corpus", "build", "science", "--facts", facts))["generation"]
    second = (await aeenc.json("corpus", "add", "science", "salt is a mineral"))["generation"]
    await index.hold("science", first, "run-a")
    refused = await aeenc("--json", "corpus", "delete", "science")
    assert (refused.code, "run-a" in refused.error["message"]) == (4, True)
    deleted = await aeenc("--json", "corpus", "delete", "science", "--despite", "run-a")
    assert deleted.json == {"corpus": "science", "generation": "all", "deleted": True}, second
    assert (await aeenc.json("corpus", "list"))["corpora"] == []
    assert (await aeenc("--json", "corpus", "delete", "science")).code == 2
