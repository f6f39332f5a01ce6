"""Facts that a user puts in from Python: plain texts, pairs and premises; single ones added and removed."""

import pytest

import aeenc
from aeenc import errors
from aeenc.trees import content_id

IRON, ICE, RAIN = "a nail is made of iron", "ice melts in heat", "rain falls from clouds"
FORMS = [IRON, ("f-ice", ICE), aeenc.Premise(id="f-rain", text=RAIN, tags=("weather",)), IRON]
EXPECTED = [(content_id(IRON), IRON, ()), ("f-ice", ICE, ()), ("f-rain", RAIN, ("weather",))]


async def listed(client, corpus="cooking"):
    return [(one.id, one.text, one.tags) async for one in client.list_premises(corpus)]


async def test_texts_pairs_and_premises_are_built_in_one_list_and_a_repeated_text_counts_once(index):
    built = await index.client.build("cooking", FORMS)
    assert (built.premises, built.active) == (3, True)
    assert await listed(index.client) == EXPECTED
    tagged = aeenc.Premise(text="snow is cold", tags=("weather",))
    await index.client.build("tagged", [tagged])
    assert await listed(index.client, "tagged") == [(content_id("snow is cold"), "snow is cold", ("weather",))]


@pytest.mark.parametrize("wrong", [7, None, ("f1",), ("f1", "text", "more"), ("f1", 7), b"bytes", {}])
async def test_what_is_no_fact_is_refused_by_its_place_with_the_forms(index, wrong):
    with pytest.raises(errors.InvalidArgument, match=r"premises\[1\].*\(id, text\).*aeenc\.Premise"):
        await index.client.build("cooking", [IRON, wrong])
    with pytest.raises(errors.InvalidArgument, match="one string"):
        await index.client.build("cooking", IRON)


async def test_single_facts_are_added_and_removed_and_what_is_there_already_changes_nothing(index, encoder):
    base = await index.client.build("cooking", FORMS)
    encoder.servicer.encoded_premises.clear()
    added = await index.client.add("cooking", [IRON, "salt is a mineral", ("f-ice", ICE)])
    assert encoder.servicer.encoded_premises == ["salt is a mineral"]
    assert (added.premises, added.active) == (4, True)
    assert (await index.client.add("cooking", [IRON])).id == added.id, "nothing new: no new generation"
    assert (await index.client.remove("cooking", [content_id("salt is a mineral")])).id == base.id
    assert await listed(index.client) == EXPECTED
    with pytest.raises(errors.InvalidArgument, match="'f-ice' is taken"):
        await index.client.add("cooking", [("f-ice", "another text")])
    with_more = [[aeenc.Premise(id="f-ice", text=ICE, **{name: ("more",)})] for name in ("aliases", "splits", "tags")]
    for facts in ([("f-new", IRON), ("f-new", RAIN)], [("f-ice", ICE), ("f-ice", "another text")], *with_more):
        with pytest.raises(errors.InvalidArgument, match=r"'f-(new|ice)' is taken"):
            await index.client.add("cooking", facts)
    with pytest.raises(errors.InvalidArgument, match="no premise 'nobody'"):
        await index.client.remove("cooking", ["nobody"])
    for call in (index.client.add("cocking", [IRON]), index.client.remove("cocking", ["f-ice"])):
        with pytest.raises(errors.NotFound, match=r"'cocking'.*cooking"):
            await call
    assert await listed(index.client) == EXPECTED


async def test_of_two_changes_at_once_one_is_made_and_the_other_says_so_and_leaves_nothing(index, monkeypatch):
    await index.client.build("cooking", FORMS)
    activate = index.client.activate

    async def slow(*args, **options):
        monkeypatch.setattr(index.client, "activate", activate)
        await index.client.add("cooking", ["salt is a mineral"])
        return await activate(*args, **options)

    monkeypatch.setattr(index.client, "activate", slow)
    with pytest.raises(errors.Aborted, match=r"changed meanwhile.*again"):
        await index.client.add("cooking", ["sugar is sweet"])
    assert [text for _, text, _ in await listed(index.client)][3:] == ["salt is a mineral"]
    assert len([one async for one in index.client.list_generations("cooking")]) == 2
