"""A data set from its check to the trees of a prover: lists of facts, their recall, quality by overlap, scores.

aeenc up
python examples/provers.py data/sample OUT      # OUT gets lists.jsonl and built.jsonl
"""

import json
import sys
from collections import Counter
from pathlib import Path

import aeenc
from aeenc import values
from aeenc.evaluation import (
    by_overlap,
    gold_folded,
    gold_of,
    leaf_recall,
    mean_scores,
    metrics_by,
    read_predictions,
    score_trees,
    strict_gold,
)
from aeenc.evaluation.faults import FAULTS, faults_of
from aeenc.exports import conclusions_of, task3_sentences, write_task3
from aeenc.trees import FACTS, Dataset

data, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
for kind, count in Counter(fault.kind for fault in faults_of(data)).items():
    print(f"fault: {FAULTS[kind]}: {count}")

dataset = Dataset.load(data)
trees = dataset.trees("dev")
with aeenc.connect() as client:
    candidates = dataset.candidates()
    premises = [values.Premise(id=one.id, text=one.text, aliases=one.aliases, splits=one.splits) for one in candidates]
    built = client.index.build("bank", premises, fold_similar=True)  # what says the same is one premise
    print(f"premises that say the same as an earlier one: {len(premises) - built.premises}")
    standing = {name: one.id for one in client.index.list_premises("bank") for name in (one.id, *one.aliases)}

    # 25 facts for each hypothesis; what a tree concludes is the answer, and in no list
    found = client.index.rankings("bank", [tree.hypothesis for tree in trees], k=75, splits=(FACTS,))
    lists = [task3_sentences((hit.text for hit in hits), conclusions_of(trees)) for hits in found.results]
    write_task3(out / "lists.jsonl", trees, lists)
    print(f"leaves in the lists: {leaf_recall(trees, lists).recall:.3f}")

    # Premises that share few words with what they explain are the hard ones
    gold = list(gold_folded(gold_of(dataset, "dev"), candidates, standing))
    report = client.trainer.evaluate("bank", gold, ranks=True)
    pairs = [(query, list(found)) for query, found in strict_gold(gold)]
    ranks = [one.strict for one in report.ranks if one.strict]
    for band in metrics_by(by_overlap(), pairs, ranks):
        print(f"MAP, {band.name}: {band.metrics.map:.3f} of {band.pairs} pairs")

# A prover that says that the first two sentences of a list prove the hypothesis
lines = [json.loads(line) for line in (out / "lists.jsonl").read_text().splitlines()]
(out / "built.jsonl").write_text(
    "".join(json.dumps({**line, "proof": "sent1 & sent2 -> hypothesis; "}) + "\n" for line in lines)
)
scores = score_trees(trees, read_predictions(out / "built.jsonl", trees))
for part, means in mean_scores(scores).items():
    print(f"{part}: " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()))
