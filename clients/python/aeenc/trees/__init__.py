"""Entailment trees: values, EntailmentBank files, directories of them, drawings."""

from aeenc.trees.dataset import EVERYTHING, FACTS, Accessible, Candidate, Dataset, content_id, numbered
from aeenc.trees.drawing import draw, to_svg
from aeenc.trees.files import read_trees, record_from_tree, tree_from_record, write_trees
from aeenc.trees.folds import HELD_OUT, folds_of, unseen_folds, write_folds
from aeenc.trees.tree import ROOT, Step, Tree

__all__ = [
    "EVERYTHING",
    "FACTS",
    "HELD_OUT",
    "ROOT",
    "Accessible",
    "Candidate",
    "Dataset",
    "Step",
    "Tree",
    "content_id",
    "draw",
    "folds_of",
    "numbered",
    "read_trees",
    "record_from_tree",
    "to_svg",
    "tree_from_record",
    "unseen_folds",
    "write_folds",
    "write_trees",
]
