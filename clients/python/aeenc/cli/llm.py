"""`aeenc oracle llm` and `aeenc oracle check`: a language model that judges, and how far to trust any oracle."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from aeenc.cli.options import taking
from aeenc.cli.oracle import Remote, RemoteToken, place_of, remote_oracle, serve
from aeenc.cli.output import fields_of, output_of
from aeenc.errors import InvalidArgument
from aeenc.files.lines import text_lines
from aeenc.oracles.agreement import GoldAgreement, GoldTask, agreement_with_gold, gold_tasks
from aeenc.oracles.ledger import Budget
from aeenc.oracles.llm import CANDIDATES, CONCURRENCY, FORM, TEMPLATE, TIMEOUT_S, LanguageModelOracle, read_key
from aeenc.oracles.remote import RemoteOracle
from aeenc.trees import Dataset


def _show_prompt(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(TEMPLATE, nl=False)
        output_of(context).note(f"what follows any template: {FORM.strip()}")
        raise typer.Exit


def language_model_of(
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="Endpoint that speaks OpenAI's API, as https://host/v1.")
    ] = "",
    model: Annotated[str, typer.Option(help="Name of the model at the endpoint.")] = "",
    key_variable: Annotated[
        str, typer.Option(metavar="VARIABLE", help="Environment variable that holds the API key.")
    ] = "OPENAI_API_KEY",
    key_file: Annotated[
        Path | None, typer.Option(help="File that holds the API key; goes before the variable.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers drawn for each prompt; where they differ: abstain.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0, show_default="0; .7 with several samples", help="Of the model's sampling.")
    ] = None,
    template: Annotated[
        Path | None, typer.Option(help="File with the prompt: $query, $candidates, and perhaps $path and $accepted.")
    ] = None,
    thinking_tokens: Annotated[
        int, typer.Option(min=0, help="Room in each answer for a model that thinks first: 4000, say.")
    ] = 0,
    prompt_candidates: Annotated[int, typer.Option(min=1, help="Most candidates in one prompt.")] = CANDIDATES,
    cache: Annotated[Path | None, typer.Option(help="File of valid answers and of what was spent.")] = None,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that may be spent, with the cache's; 0: no limit.")
    ] = 0,
    max_cost: Annotated[
        float, typer.Option(min=0, help="Money that may be spent, with the cache's; 0: no limit.")
    ] = 0.0,
    prompt_price: Annotated[float, typer.Option(min=0, help="Price of a million tokens of prompts.")] = 0.0,
    answer_price: Annotated[float, typer.Option(min=0, help="Price of a million tokens of answers.")] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Calls to the endpoint at once.")] = CONCURRENCY,
    answer_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the endpoint may take for an answer.")
    ] = TIMEOUT_S,
    steps: Annotated[
        bool, typer.Option("--steps", help="Ask, too, whether what is accepted proves the query: a prompt more a task.")
    ] = False,
    show_prompt: Annotated[  # noqa: ARG001 -- its callback has done it
        bool,
        typer.Option(
            "--show-prompt", is_eager=True, callback=_show_prompt, help="Print the template of the prompt, and end."
        ),
    ] = False,
) -> LanguageModelOracle | None:
    """Makes the oracle of a command's options; None without an endpoint."""
    if bool(base_url) != bool(model):
        raise InvalidArgument("--base-url URL and --model NAME belong together; give both")
    if not base_url:
        return None
    return LanguageModelOracle(
        base_url,
        model,
        key=read_key(os.environ, key_variable, key_file),
        samples=samples,
        temperature=temperature,
        template="".join(line.replace("\r", "") for _, line in text_lines(template)) if template else TEMPLATE,
        candidates=prompt_candidates,
        thinking_tokens=thinking_tokens,
        cache=cache,
        budget=Budget(max_tokens, max_cost, prompt_price, answer_price),
        concurrency=concurrency,
        timeout_s=answer_timeout,
        steps=steps,
    )


@taking(oracle=language_model_of, place=place_of)
def llm(context: typer.Context, oracle: LanguageModelOracle | None, place: dict[str, Any]) -> None:
    """Serves a language model as an oracle. Needs `pip install './clients/python[oracle-llm]'` (in a checkout).

    A schema, a temperature or a seed that the endpoint refuses is left out.
    Whatever is not a whole, valid answer makes it abstain. Run
    `aeenc oracle check` first: it says how far the model agrees with
    gold trees, and what that costs.
    """
    if oracle is None:
        raise InvalidArgument("give --base-url URL and --model NAME")
    out = output_of(context)
    serve(oracle, place, out)
    used = oracle.usage
    out.note(f"{used.calls} calls, {used.prompt_tokens} + {used.answer_tokens} tokens, cost {used.cost:.4f}")
    for line in _invalid(oracle):
        out.note(line)


@taking(model=language_model_of)
def check(
    context: typer.Context,
    model: LanguageModelOracle | None,
    trees: Annotated[Path, typer.Option(help="Gold trees: a directory in EntailmentBank's layout.")],
    split: Annotated[str, typer.Option(help="The split whose queries are asked.")] = "dev",
    queries: Annotated[int, typer.Option(min=1, help="Queries asked.")] = 50,
    candidates: Annotated[int, typer.Option(min=2, help="Candidates of each: its gold, and others like it.")] = 10,
    seed: Annotated[int, typer.Option(help="Which queries are drawn.")] = 0,
    remote: Remote = None,
    remote_token: RemoteToken = None,
) -> None:
    """Compares an oracle with gold trees: precision, recall, kappa, cost.

    The oracle is one that is running (--remote) or a language model
    (--base-url and --model). Its candidates are a query's gold premises
    among those of other trees that share most words with them.
    """
    if (remote is None) == (model is None):
        raise InvalidArgument("give either --remote HOST:PORT or --base-url URL with --model NAME")
    out = output_of(context)
    tasks = gold_tasks(Dataset.load(trees), split, count=queries, candidates=candidates, seed=seed)
    oracle = model or remote_oracle(context, remote or "", remote_token)
    agreement, cost = asyncio.run(_measured(oracle, tasks))
    figures = fields_of(agreement, *_FIGURES)
    lines = [f"{_FIGURES[name]:<44}{'none' if value is None else f'{value:.3f}'}" for name, value in figures.items()]
    lines += [f"{name.replace('_', ' '):<44}{value:g}" for name, value in cost.items()]
    invalid = dict(oracle.invalid) if isinstance(oracle, LanguageModelOracle) else {}
    lines += _invalid(oracle)
    out.result({**asdict(agreement), **figures, **cost, "invalid": invalid}, *lines)


_FIGURES = {
    "precision": "precision: gold among what it accepts",
    "recall": "recall: gold that it accepts",
    "wrong_refusals": "wrong refusals: gold among what it refuses",
    "decided": "decided: candidates that it decides",
    "kappa": "Cohen's kappa over decided candidates",
}


async def _measured(
    oracle: RemoteOracle | LanguageModelOracle, tasks: list[GoldTask]
) -> tuple[GoldAgreement, dict[str, float]]:
    """Compares and closes; the second value is what a language model has spent on it."""
    before = _spent(oracle)
    try:
        agreement = await agreement_with_gold(oracle, tasks)
        return agreement, {name: value - before[name] for name, value in _spent(oracle).items()}
    finally:
        await oracle.close()


def _invalid(oracle: RemoteOracle | LanguageModelOracle) -> list[str]:
    """Says why answers were not valid, and how many."""
    counted = oracle.invalid.most_common() if isinstance(oracle, LanguageModelOracle) else ()
    return [f"answers that are not valid, {reason}: {count}" for reason, count in counted]


def _spent(oracle: RemoteOracle | LanguageModelOracle) -> dict[str, float]:
    return asdict(oracle.usage) if isinstance(oracle, LanguageModelOracle) else {}
