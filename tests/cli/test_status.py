"""`aeenc status`: what each service says, and what is told when one is away."""


async def test_status_shows_labels_versions_corpora_and_reasons(aeenc, fleet, sampler):
    await aeenc("corpus", "build", "science", "--facts", "-", typed="ice is cold\n")
    ended = await aeenc("--json", "status")
    assert (ended.code, ended.stderr) == (0, "")
    services = ended.json["services"]
    assert list(services) == ["encoder", "index", "sampler", "trainer"]
    assert (services["encoder"]["state"], services["encoder"]["reason"]) == ("DEGRADED", "no registry")
    assert services["encoder"]["labels"] == {"stable": services["encoder"]["versions"][0]}
    assert services["index"]["corpora"]["science"]["premises"] == 1
    assert services["sampler"]["oracles"] == ["fake"]
    shown = await aeenc("status")
    for words in ("DEGRADED", "stable = ", "science: 1 premises", "oracles: fake", "device: cpu"):
        assert words in " ".join(shown.stdout.split())


async def test_an_absent_service_is_shown_beside_the_others_with_exit_code_3(aeenc, fleet):
    options = ("--sampler", "127.0.0.1:1", "--timeout", 3)
    ended = await aeenc(*options, "--json", "status")
    assert ended.code == 3
    assert ended.json["services"]["sampler"]["error"]["status"] == "UNAVAILABLE"
    assert ended.json["services"]["index"]["state"] == "SERVING"
    assert "127.0.0.1:1" in ended.error["message"]
    assert "UNAVAILABLE" in (await aeenc(*options, "status")).stdout


async def test_a_malformed_address_is_named_beside_the_services_that_answer(aeenc, fleet, monkeypatch):
    monkeypatch.setenv("AEENC_SAMPLER", "sampler.lab")
    ended = await aeenc("--timeout", 3, "--json", "status")
    assert ended.json["services"]["index"]["state"] == "SERVING"
    wanted = "sampler: 'sampler.lab' is not an address; give HOST:PORT, such as 127.0.0.1:50052"
    told = ended.json["services"]["sampler"]["error"]["message"]
    assert told == f"{wanted}, by sampler=, --sampler or AEENC_SAMPLER"
    assert (ended.code, ended.error["message"]) == (2, told)
    assert (await aeenc("runs")).stderr == f"error: {told}\n"
