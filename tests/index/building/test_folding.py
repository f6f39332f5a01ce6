"""Which texts are one premise: the same to the byte, or, on request, those that say the same."""

from aeenc import errors
from services.corpus.generation import open_generation
from support.subject import header, reports
from support.worlds.index_world import premise, raises


async def test_similar_texts_become_aliases_only_where_the_build_asks_for_it(index, encoder):
    premises = [
        premise("a", "Ice is cold.", ["dev"]),
        premise("b", "fire is hot"),
        premise("c", "the ice is  cold", ["facts"]),
    ]
    apart = await index.client.build("science", premises)
    assert apart.premises == 3
    assert [note.partition(";")[0] for note in apart.notes] == [
        "1 of 3 premises say the same as an earlier one but for case, articles and punctuation"
    ]
    encoder.servicer.encoded_premises.clear()
    together = await index.client.build("science", premises, fold_similar=True)
    assert together.notes == ()
    assert encoder.servicer.encoded_premises == ["Ice is cold.", "fire is hot"]
    listed = [one async for one in index.client.list_premises("science", generation=together.id)]
    assert [(one.id, one.text, list(one.aliases), list(one.splits)) for one in listed] == [
        ("a", "Ice is cold.", ["c"], ["dev", "facts"]),
        ("b", "fire is hot", [], []),
    ]


async def test_a_base_keeps_its_premises_apart_and_takes_similar_ones_in(index, encoder):
    base = await index.client.build("science", [premise("a", "Ice is cold."), premise("b", "ice is cold")])
    encoder.servicer.encoded_premises.clear()
    more = [premise("c", "ICE is COLD!"), premise("d", "snow is cold")]
    await index.client.build("science", more, base_generation=base.id, fold_similar=True)
    listed = [(one.id, list(one.aliases)) async for one in index.client.list_premises("science")]
    assert listed == [("a", ["c"]), ("b", []), ("d", [])]
    assert encoder.servicer.encoded_premises == ["snow is cold"]


async def test_what_is_added_to_a_folded_corpus_is_folded_unless_it_is_asked_otherwise(index):
    base = await index.client.build("science", [premise("a", "Ice is cold.")], fold_similar=True)
    more = [premise("b", "ice is cold"), premise("c", "snow is cold")]
    added = await index.client.build("science", more, base_generation=base.id)
    listed = [(one.id, list(one.aliases)) async for one in index.client.list_premises("science")]
    assert listed == [("a", ["b"]), ("c", [])]
    assert open_generation(index.store, "science", added.id).is_folded
    apart = await index.client.build(
        "science", [premise("d", "Snow is cold!")], base_generation=added.id, fold_similar=False
    )
    listed = [(one.id, list(one.aliases)) async for one in index.client.list_premises("science")]
    assert listed == [("a", ["b"]), ("c", []), ("d", [])]
    assert not open_generation(index.store, "science", apart.id).is_folded


async def test_a_split_or_tag_that_a_premise_names_twice_is_stored_once_and_gives_the_same_generation(index):
    once = await index.client.build("once", [premise("a", "ice melts", ["x"], tags=["t"])])
    twice = await index.client.build("once", [premise("a", "ice melts", ["x", "x"], tags=["t", "t"])])
    assert once.id == twice.id
    (listed,) = [one async for one in index.client.list_premises("once")]
    assert (listed.splits, listed.tags) == (("x",), ("t",))


async def test_an_unknown_kind_of_folding_is_refused_by_name(index):
    build = reports(index.client, header("science", folding=9))
    await raises(errors.InvalidArgument, build, "header.folding", "9")
