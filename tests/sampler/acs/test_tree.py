"""The growth of one tree, without storage and without an oracle."""

from aeenc.values import RunConfig
from services.sampler.acs.algorithm import AcceptedPremise, Node, Result, Tree


def test_a_text_is_a_node_once_below_the_first_parent_that_accepts_it():
    tree = Tree(0, "h", [Node(0, "root"), Node(1, "left", "l", 0, 1), Node(2, "right", "r", 0, 1)], depth=1)
    shared, root_again = AcceptedPremise("s", "shared", 1, leaf=False), AcceptedPremise("0", "root", 2, leaf=False)
    tree.results = {1: Result((shared, root_again)), 2: Result((shared,))}
    assert tree.next_level(RunConfig(k=5, max_depth=8)) == [Node(3, "shared", "s", 1, 2)]
