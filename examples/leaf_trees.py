"""The trees of a data set with one step each, from the facts that are its leaves to its hypothesis.

An encoder that learns from them finds what a prover has to be given. Leaves are matched to the fact file without case,
punctuation and articles; those that it lacks are left out, and so is a tree without any.

python examples/leaf_trees.py data/entailmentbank data/leaves
"""

import shutil
import sys
from pathlib import Path

from aeenc.evaluation import normalised
from aeenc.trees import Dataset, Step, Tree, write_trees

data, out = Path(sys.argv[1]), Path(sys.argv[2])
dataset = Dataset.load(data)
facts = {normalised(text): text for text in reversed(dataset.facts.values())}


def flat(tree: Tree) -> Tree:
    """A tree of one step; of none where no leaf is a fact."""
    found = dict.fromkeys(facts.get(normalised(tree.texts[label]), "") for label in tree.leaves)
    texts = [text for text in found if text and normalised(text) != normalised(tree.hypothesis)]
    sentences = {f"sent{number}": text for number, text in enumerate(texts, start=1)}
    steps = (Step(tuple(sentences), "hypothesis", tree.hypothesis),) if texts else ()
    return Tree(tree.id, tree.hypothesis, sentences, steps, tree.question, tree.answer)


shutil.copytree(data / "supporting_data", out / "supporting_data", dirs_exist_ok=True)
(out / "dataset" / "task_1").mkdir(parents=True, exist_ok=True)
for split in dataset.splits:
    trees = [one for one in map(flat, dataset.trees(split)) if one.steps]
    write_trees(out / "dataset" / "task_1" / f"{split}.jsonl", trees)
    print(f"{split}: {len(trees)} trees, {sum(len(tree.leaves) for tree in trees)} leaves")
