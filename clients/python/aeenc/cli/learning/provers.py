"""`aeenc export task3` and `aeenc score-trees`: what provers read, and how good the trees are that they build.

a corpus ──► export task3 ──► a prover of somebody's ──► score-trees, beside gold trees
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc.calls.retrieval import Retrieval
from aeenc.cli.learning.evaluation import rankings_of
from aeenc.cli.learning.retrieval import Label, Version, check_model, retrieval_of
from aeenc.cli.options import taking
from aeenc.cli.output import output_of, table
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument
from aeenc.evaluation import leaf_recall, proofs
from aeenc.exports import conclusions_of, task3_sentences, write_task3
from aeenc.files.whole import is_stdout, write_json_lines
from aeenc.trees import FACTS, Dataset, read_trees

SPARE = 50  # premises asked for beyond k: conclusions and other forms of a fact are left out
_SIMILARITY = (
    "A function of yours that judges intermediate conclusions: it gets two lists of texts, gold and predicted, and "
    "returns a score for each pair, such as BLEURT's. Without it, intermediates and overall are left out."
)


@taking(retrieval=retrieval_of)
def export_task3(
    context: typer.Context,
    corpus: Annotated[str, typer.Argument(help="The corpus; of one built by --data, only facts are taken.")],
    data: Annotated[Path, typer.Option(help="The hypotheses: a directory in EntailmentBank's layout.")],
    to: Annotated[Path, typer.Option(help="The file; -: stdout.")],
    split: Annotated[str, typer.Option(help="The split of --data.")] = "dev",
    k: Annotated[int, typer.Option("-k", min=1, max=1000 - SPARE, help="Sentences a hypothesis.")] = 25,
    label: Label = None,
    version: Version = None,
    retrieval: Retrieval | None = None,
) -> None:
    """Writes the sentences found for each hypothesis as EntailmentBank's Task 3 lines, which provers read.

    A fact is one entry, and what a tree of the split concludes is never in a
    list. Prints the share of the trees' leaves that the lists have, by text
    without case, punctuation and articles, and by exact text.
    """
    check_model(label, version)
    trees = Dataset.load(data).trees(split)
    conclusions = conclusions_of(trees)
    out = output_of(context)
    with out.progress("retrieving", "hypotheses") as report:
        texts = [tree.hypothesis for tree in trees]
        lists = [
            task3_sentences((hit.text for hit in hits), conclusions, k)
            for hits in rankings_of(
                client(context),
                corpus,
                texts,
                report,
                k=k + SPARE,
                retrieval=retrieval,
                label=label,
                version=version,
                splits=(FACTS,),
            )
        ]
    if few := sum(len(sentences) < k for sentences in lists):
        out.note(f"{few:,} of {len(lists):,} lists have fewer than {k} sentences; the corpus has no more for them")
    write_task3(to, trees, lists)
    recalls = {"normalised": leaf_recall(trees, lists), "exact": leaf_recall(trees, lists, str)}
    shares = {name: {f"Recall@{k}": one.recall, f"AllCorrect@{k}": one.all_correct} for name, one in recalls.items()}
    rows = [(f"{name} text", *(f"{share:.3f}" for share in told.values())) for name, told in shares.items()]
    shown = table(["leaves, by", f"Recall@{k}", f"AllCorrect@{k}"], rows, right=2)
    result = {"to": str(to), "split": split, "hypotheses": len(trees), "leaves": shares}
    if is_stdout(to):
        out.note("; ".join(f"leaves by {name}, {recall}, {complete}" for name, recall, complete in rows))
    else:
        out.result(result, shown, f"{to}: {len(trees):,} hypotheses of {split}")


def score_trees(
    context: typer.Context,
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PRED",
            help="Lines of JSON with id, proof and, where its labels are not gold's, context, as `aeenc export trees` "
            "writes them; or EntailmentBank's `$proof$ = sent1 & sent2 -> hypothesis;`, a line for each gold tree.",
        ),
    ],
    gold_trees: Annotated[
        Path, typer.Argument(metavar="GOLD", help="Gold trees, such as dataset/task_1/dev.jsonl of EntailmentBank.")
    ],
    similarity: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help=_SIMILARITY)] = "",
    threshold: Annotated[
        float, typer.Option(help="An intermediate is right from this --similarity on; .28 is for BLEURT.")
    ] = proofs.BLEURT_CORRECT,
    by_normalised_text: Annotated[
        bool,
        typer.Option("--normalised", help="Where leaves are compared by text: ignore case, punctuation and articles."),
    ] = False,
    by_tree: Annotated[
        Path | None, typer.Option(help="Also write the scores of each tree, one JSON object a line; -: stdout.")
    ] = None,
) -> None:
    """Scores predicted entailment trees against gold ones, as EntailmentBank's published scorer does.

    Prints means over the gold trees: precision, recall and F1 of the leaves,
    F1 of the steps and of the intermediate conclusions, and AllCorrect, the
    share of trees without a mistake in these, and in all three (overall). A
    malformed proof is scored as far as it goes, a missing one as 0. Leaves are
    compared by label, or by text where a line of PRED has its own context.
    Needs no service.
    """
    judge = _function(similarity) if similarity else None
    gold = read_trees(gold_trees)
    predicted = proofs.read_predictions(predictions, gold)
    scores = proofs.score_trees(
        gold, predicted, similarity=judge, threshold=threshold, by_normalised_text=by_normalised_text
    )
    out = output_of(context)
    if empty := sum(one.steps == () for one in predicted):
        out.note(f"{empty:,} of {len(gold):,} gold trees have no step in {predictions}; they score 0")
    means = proofs.mean_scores(scores)
    result: dict[str, Any] = {"trees": len(gold), **means}
    columns = ("P", "R", "F1", "AllCorrect")
    rows = [(part, *(f"{told[name]:.3f}" if name in told else "" for name in columns)) for part, told in means.items()]
    shown: list[Any] = [table([f"{len(gold):,} trees", *columns], rows, right=len(columns))]
    if judge is None:
        result["left_out"] = ["intermediates", "overall"]
        shown.append("left out: intermediates and overall, which need --similarity MODULE:FUNCTION")
    if by_tree is None or not is_stdout(by_tree):
        out.result(result, *shown)
    if by_tree is not None:
        write_json_lines(by_tree, ({"id": one.id, **one.to_dict()} for one in scores))


def _function(name: str) -> proofs.Similarity:
    """Imports `module:function` from this directory or where Python looks. Raises InvalidArgument."""
    module, _, function = name.partition(":")
    sys.path.append(str(Path.cwd()))  # last: nothing here hides an installed module
    try:
        found: Any = import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"--similarity {name}: {error}; give MODULE:FUNCTION that Python can import") from None
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(found):
        raise InvalidArgument(f"--similarity {name} is a {type(found).__name__}; name a function of two lists of texts")
    judge: proofs.Similarity = found
    return judge
