"""Premise selection over a small library of lemmas: only what stands before a lemma may explain it.

aeenc up --gold examples/lemmas
python examples/lemmas/premise_selection.py [ORACLE]
"""

import sys
from pathlib import Path

import aeenc
from aeenc import values
from aeenc.evaluation import load_data

library = load_data(Path(__file__).parent)
place = {lemma.id: number for number, lemma in enumerate(library.candidates())}
lemmas = {lemma.text: lemma.id for lemma in library.candidates()}

with aeenc.connect() as client:
    client.index.build("lemmas", [values.Premise(id=name, text=text) for text, name in lemmas.items()])

    # What the data say in `before` of queries.jsonl: {"a number plus one is its successor": Accessible("add-one"), …}
    accessible = library.accessible("dev")
    queries = library.queries("dev")
    for told, of in ((None, "all lemmas"), (accessible, "those that stand before")):
        report = client.trainer.evaluate("lemmas", queries, accessible=told)
        print(f"MAP of dev among {of}: {report.strict.map:.3f}")

    # A run puts no other premise before its oracle. An accepted lemma is explained by what stands before itself.
    accessible = library.accessible("train")
    oracle = sys.argv[1] if len(sys.argv) > 1 else "gold"
    run = client.sampler.start_run(library.hypotheses("train"), corpus="lemmas", oracle=oracle, accessible=accessible)
    run = client.sampler.wait(run.id)
    pairs = list(client.sampler.list_pairs(run.id))
    late = [pair for pair in pairs if place[pair.premise_id] >= place[lemmas[pair.query]]]
    explaining = sum(pair.sign is values.PairSign.POSITIVE for pair in pairs)
    print(f"{run.progress.nodes_judged} nodes of trees judged, {len(pairs)} premises, {explaining} of them explain")
    print(f"premises that do not stand before their lemma: {len(late)}")
