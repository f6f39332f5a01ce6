"""`aeenc loop`: rounds of sampling, training and publishing, with a table of the quality after each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from aeenc.cli.corpus import LAYOUTS
from aeenc.cli.learning.jobs import TRAINING_SPLIT, recipe_of
from aeenc.cli.learning.reports import SHOWN, report_dict
from aeenc.cli.learning.runs import hypotheses_of
from aeenc.cli.options import taking
from aeenc.cli.output import output_of, table
from aeenc.cli.targets import client
from aeenc.errors import InvalidArgument
from aeenc.evaluation import accessible_of, gold_of, load_data
from aeenc.loop import STABLE, Journal, Loop, LoopPlan, Round
from aeenc.transport.targets import home

FULL_CORPUS = "full-corpus-softmax"


def rounds_table(rounds: list[Round]) -> Table:
    """Makes a table of the quality on the validation queries, round by round: protocol strict, and the MAP of paper."""
    rows = []
    for one in rounds:
        if not one.report:  # started before somebody asked for fewer rounds
            continue
        figures = [one.report["strict"][name] for name in SHOWN] + [one.report["paper"]["MAP"]]
        pairs = f"{one.positives:,}+{one.negatives:,}" if one.number else ""
        rows.append([one.number, one.version, pairs, *(f"{figure:.3f}" for figure in figures)])
    return table(["", "version", "pairs", *SHOWN, "paper"], rows, right=len(SHOWN) + 2)


@taking(recipe=recipe_of)
def loop(
    context: typer.Context,
    recipe: dict[str, Any],
    corpus: Annotated[str, typer.Argument(help="The corpus to retrieve from and to train against.")],
    data: Annotated[Path, typer.Option(help=f"Hypotheses and gold queries. {LAYOUTS}")],
    mode: Annotated[
        Literal["single", "siamese", "dual"],
        typer.Option(help="As of `aeenc train`; the last two need a --loss, and publish encoders and corpus together."),
    ] = "single",
    rounds: Annotated[int, typer.Option(min=1, help="How many; a loop that has ended may go on with more.")] = 4,
    journal: Annotated[
        Path | None, typer.Option(show_default=".aeenc/loops/CORPUS.json", help="Where it keeps what it has done.")
    ] = None,
    oracle: Annotated[str, typer.Option(help="Who judges: a name from the sampler's settings.")] = "gold",
    split: Annotated[str, typer.Option(help="The split of --data to validate on.")] = "dev",
    k: Annotated[int, typer.Option("-k", min=1, help="Candidates a node.")] = 20,
    collect: Annotated[
        Literal["both", "positives-only", "positives-later"],
        typer.Option(help="Verdicts kept; `positives-later`: only positives from round 2 on, as in the paper's 3.2."),
    ] = "both",
    restart: Annotated[
        bool, typer.Option(help="Train from the pre-trained encoder, not from the last round's.")
    ] = True,
    patience: Annotated[
        int, typer.Option(min=0, help="End after so many rounds without a gain; 0: never. May change as --rounds may.")
    ] = 1,
    label: Annotated[
        str, typer.Option(help="The label that samples; it is moved to what a round has gained.")
    ] = STABLE,
) -> None:
    """Samples, trains, measures and publishes in rounds. Interrupted anywhere, the same command goes on where it was.

    A round's encoder is published when it is better than those before, or when a further round samples with it. A run
    or job that was cancelled meanwhile ends the command; given again, it resumes it. Runs and evaluations keep to the
    premises that --data says are accessible to a query.
    """
    if mode != "single" and recipe.get("loss", FULL_CORPUS) == FULL_CORPUS:  # refused before a round has sampled
        raise InvalidArgument(f"--mode {mode} needs another loss than {FULL_CORPUS}; give --loss triplet-margin")
    first = "positives_only" if collect == "positives-only" else "both"
    dataset = load_data(data)
    validation = gold_of(dataset, split)
    measured = {text for text, _ in validation}
    accessible = accessible_of(dataset, TRAINING_SPLIT)
    plan = LoopPlan(
        corpus=corpus,
        hypotheses=hypotheses_of(dataset, TRAINING_SPLIT),
        validation=validation,
        oracle=oracle,
        rounds=rounds,
        restart=restart,
        patience=patience,
        label=label,
        run={"k": k, "split": TRAINING_SPLIT, "collect": first, "accessible": accessible},
        later_run={"collect": "positives_only"} if collect == "positives-later" else {},
        job={**recipe, "split": TRAINING_SPLIT},
        mode=mode,
        accessible={text: one for text, one in accessible_of(dataset, split).items() if text in measured},
    )
    out = output_of(context)
    with (
        Journal.open(journal or home() / "loops" / f"{corpus}.json", plan) as opened,
        out.on_interrupt("the same command goes on where this one was"),
    ):
        looping = Loop(client(context), plan, opened, report_dict, out.note)
        done = looping.go()
    best = looping.best
    result = {
        "corpus": corpus,
        "ended": opened.ended,
        "best_round": best.number,
        "version": best.version,
        "rounds": [vars(one) for one in done],
        "journal": str(opened.path),
    }
    out.result(result, rounds_table(done), f"{opened.ended}; {label} names round {best.number}, {best.version}")
