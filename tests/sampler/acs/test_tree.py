"""The growth of one tree, without storage and without an oracle."""

from collections.abc import Iterable

from aeenc.oracle import Candidate, Task
from aeenc.values import Judgement, RunConfig, Verdict
from services.sampler.acs.algorithm import (
    AcceptedPremise,
    Amendment,
    Growth,
    Known,
    Node,
    NodeAnswer,
    NodeRound,
    Result,
    Tree,
    known_by,
)

DEEP = RunConfig(max_depth=8)


def premise(name: str, *, leaf: bool = False) -> AcceptedPremise:
    """An accepted premise with a text of its own."""
    return AcceptedPremise(name, f"text {name}", 1, leaf)


def amended(accepted: Iterable[AcceptedPremise], refused: Iterable[str] = ()) -> Amendment:
    """A node's new explanation, after people changed it."""
    return Amendment("0-0", tuple(accepted), "task", 1, frozenset(refused))


def judged(depth: int) -> Tree:
    """root ─ a ─ b: all judged down to b, and b's level or the one of a in work."""
    nodes = [Node(0, "root"), Node(1, "text a", "a", 0, 1), Node(2, "text b", "b", 1, 2)]
    results = {0: Result((premise("a"), premise("l", leaf=True))), 1: Result((premise("b"),)), 2: Result()}
    return Tree(0, "h", nodes[: depth + 1], {n: results[n] for n in range(depth + 1)}, depth)


def test_a_text_is_a_node_once_below_the_first_parent_that_accepts_it():
    tree = Tree(0, "h", [Node(0, "root"), Node(1, "left", "l", 0, 1), Node(2, "right", "r", 0, 1)], depth=1)
    shared, root_again = AcceptedPremise("s", "shared", 1, leaf=False), AcceptedPremise("0", "root", 2, leaf=False)
    tree.results = {1: Result((shared, root_again)), 2: Result((shared,))}
    assert tree.next_level(RunConfig(k=5, max_depth=8)) == [Node(3, "shared", "s", 1, 2)]


def test_a_node_grows_below_the_root_and_the_level_in_work_goes_back():
    tree, rules = judged(2), RunConfig(max_depth=3)
    growth = tree.growth(0, amended([premise("a"), premise("c"), premise("d", leaf=True)]), rules)
    assert growth == Growth(
        0,
        Result((premise("a"), premise("l", leaf=True), premise("c"), premise("d", leaf=True))),
        (Node(3, "text c", "c", 0, 1),),
        1,
    )
    tree.grow(growth)
    assert ([node.text for node in tree.pending()], tree.deeper) == (["text c"], True)
    assert tree.growth(0, amended([premise("c")]), rules) is None, "once is enough"
    tree.results[3] = Result((premise("b"), premise("e")))
    assert [node.text for node in tree.next_level(rules)] == ["text e"], "b was expanded under a"


def test_a_leaf_that_is_none_any_more_is_expanded_and_limits_hold():
    tree = judged(2)
    growth = tree.growth(0, amended([premise("l")]), DEEP)
    assert growth is not None
    assert [node.text for node in growth.nodes] == ["text l"]
    assert growth.result.accepted == (premise("a"), premise("l"))
    deepest = tree.growth(2, amended([premise("c")]), RunConfig(max_depth=2))
    assert deepest is not None
    assert (deepest.nodes, deepest.depth) == ((), 2)
    full = tree.growth(0, amended([premise("c")]), RunConfig(max_depth=8, max_nodes_per_tree=3))
    assert full is not None
    assert (full.nodes, full.depth) == ((), 2)


def test_the_level_in_work_opens_what_was_accepted_meanwhile_by_itself():
    tree = judged(0)
    growth = tree.growth(0, amended([premise("c"), AcceptedPremise("r", "root", 1, leaf=False)]), DEEP)
    assert growth is not None
    assert (growth.nodes, growth.depth) == ((), 0)
    tree.grow(growth)
    assert [node.text for node in tree.next_level(DEEP)] == ["text a", "text c"]
    assert Tree(0, "h", [Node(0, "root")]).growth(0, amended([premise("c")]), DEEP) is None, "not judged yet"


def test_what_is_taken_back_cuts_what_hangs_on_nothing_else_until_it_is_accepted_again():
    """root ─ a ─ b ─ c, and root ─ d, which accepts b, too: without a, b hangs on d."""
    nodes = [Node(0, "root"), Node(1, "text a", "a", 0, 1), Node(2, "text d", "d", 0, 1), Node(3, "text b", "b", 1, 2)]
    nodes += [Node(4, "text e", "e", 1, 2), Node(5, "text c", "c", 3, 3)]
    results = {0: Result((premise("a"), premise("d"))), 1: Result((premise("b"), premise("e")))}
    results |= {2: Result((premise("b"),)), 3: Result((premise("c"),)), 4: Result()}
    tree, rules = Tree(0, "h", nodes, results, 3), DEEP
    assert [node.text for node in tree.pending()] == ["text c"]
    without_a = tree.growth(0, amended((), {"a"}), rules)
    assert without_a == Growth(0, Result((premise("d"),)), (), 3, frozenset({1, 4}))
    tree.grow(without_a)
    assert [node.text for node in tree.pending()] == ["text c"]
    without_both = tree.growth(2, amended((), {"b"}), rules)
    assert without_both == Growth(2, Result(()), (), 3, frozenset({1, 3, 4, 5}), -1)
    tree.grow(without_both)
    assert (tree.pending(), tree.next_level(rules)) == ([], [])
    again = tree.growth(0, amended((premise("a"),)), rules)
    assert again == Growth(0, Result((premise("d"), premise("a"))), (), 1, frozenset(), 1)
    tree.grow(again)
    assert (tree.pending(), tree.next_level(rules)) == ([], [])
    tree.depth = 3
    assert [node.text for node in tree.pending()] == ["text c"]


def test_a_round_goes_on_with_what_another_version_asks_of_people_unless_that_was_answered():
    tree, other = Tree(0, "h", [Node(0, "q")]), Candidate("p3", "t3", 1, 0.5)
    found = [Candidate("p1", "t1", 1, 0.9), Candidate("p2", "t2", 2, 0.8)]
    here = NodeRound(tree, tree.nodes[0]).with_nearest(found, 2, "version-2")
    task = Task("a", "run", "q", (), (), (other, found[1]), "version-1")
    begun = here.begun_by(task)
    assert ([one.id for one in begun.asked], begun.version) == (["p3", "p2"], "version-1")
    assert [one.id for one in begun.candidates] == ["p3", "p2"], "a round has one version"
    assert here.begun_by(None) is here
    assert here.begun_by(Task("a", "run", "q", (), (), (other,), "version-2")) is here
    answered = Known({"p3": known_by(Verdict(premise_id="p3", judgement=Judgement.EXPLAINS), other)})
    later = NodeRound(tree, tree.nodes[0], answered).with_nearest(found, 2, "version-2")
    assert later.begun_by(task) is later, "a round before has asked it"
    no = Judgement.DOES_NOT_EXPLAIN
    refused = {one.id: Verdict(premise_id=one.id, judgement=no) for one in (*task.candidates, *found)}
    answer = NodeAnswer("0-0", refused, "ann")
    outcome = begun.outcome(answer)
    assert begun.next_round(outcome, DEEP, answer) is None
    again = begun.next_round(outcome, RunConfig(step=2, k=2), answer)
    assert again is not None
    assert (again.asked, again.accepted) == ((), ()), "with steps it is retrieved once more"
    last = again.with_nearest(found, 2, "version-2", 2)
    assert ([one.id for one in last.asked], last.version) == (["p1"], "version-2")
    assert last.next_round(last.outcome(answer), RunConfig(step=2, k=2), answer) is None


def test_what_is_known_names_the_query_vector_that_gave_its_score_and_each_round_has_its_own():
    tree, found = Tree(0, "h", [Node(0, "q")]), [Candidate(f"p{n}", f"t{n}", n, 0.9) for n in (1, 2)]
    yes = [Verdict(premise_id=one.id, judgement=Judgement.EXPLAINS) for one in found]
    first = NodeRound(tree, tree.nodes[0]).with_nearest(found[:1], 1, "v1")
    outcome = first.outcome(NodeAnswer("0-0", {"p1": yes[0]}, "ann"))
    following = first.next_round(outcome, RunConfig(conditioned=True))
    assert following is not None
    second = following.with_nearest(found, 2, "v1")
    known = second.outcome(NodeAnswer("0-0", {"p2": yes[1]}, "ann")).known.pairs
    assert {name: one.vector for name, one in known.items()} == {"p1": first.vector, "p2": second.vector}
    assert first.vector == "v1" != second.vector
