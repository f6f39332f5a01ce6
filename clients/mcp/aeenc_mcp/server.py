"""The tools of the MCP server. Each makes calls of the SDK; errors of `aeenc` reach the model with their remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

import aeenc
from aeenc.adapters.status import ask, report_of
from aeenc.calls.retrieval import Mode
from aeenc.transport.targets import Targets
from aeenc_mcp.tree import PremiseTree, build_tree

MAX_K, MAX_WIDTH, MAX_DEPTH = 100, 5, 3

Corpus = Annotated[str, Field(description="The corpus to search; `status` lists them.")]
Ways = Annotated[
    Mode,
    Field(
        description="dense: by the encoder; lexical: by words (BM25); hybrid: by both; iterative_lexical: by words, to "
        "which those of the best premises are added round by round."
    ),
]
Label = Annotated[str | None, Field(description="The label of the query encoder. Default: as the encoder chooses.")]
Version = Annotated[str | None, Field(description="A version of the query encoder, in place of a label.")]

RETRIEVE = """Finds the premises (facts) of a corpus that best explain a text, best first.

Explaining is not similarity: the encoder was trained to rank what helps to infer the text. With `accepted`, ids of
premises already found, it searches for what these leave unexplained; they are not returned again. Scores compare
premises of one answer, not of different ones."""
EXPLAIN = f"""Builds a tree of premises for a hypothesis, breadth first, by searches alone.

For the hypothesis it takes the best premise, then the best given that one, and so on up to k (at most {MAX_WIDTH});
then the same for each premise found, as if that were the hypothesis, up to `depth` levels (at most {MAX_DEPTH}).
No premise stands in the tree twice. It does NOT judge: every premise found is taken as accepted, also a bad one, and
there are always k where the corpus has them. It does NOT prove that the premises entail the hypothesis, and it writes
no intermediate conclusions. Read the premises, keep those that explain, and call `retrieve` with them as `accepted`."""
STATUS = """Shows for each service (encoder, index, sampler, trainer) its address, state and reason, labels, versions
and corpora, or the error when it is away. Changes nothing."""


@dataclass(frozen=True)
class RankedPremise:
    """One premise found; `rank` counts from 1."""

    id: str
    text: str
    score: float
    rank: int


@dataclass(frozen=True)
class Premises:
    """The premises found and their origin: the encoder ("" in lexical modes) and the corpus' generation."""

    premises: list[RankedPremise]
    model_version: str
    generation: str


def make_server(targets: Targets) -> MCPServer[Any]:
    """Makes the server. Its client connects at the first call, in the event loop that serves."""
    server: MCPServer[Any] = MCPServer("aeenc", instructions=RETRIEVE, version=aeenc.__version__, log_level="WARNING")
    clients: list[aeenc.AsyncClient] = []

    def client() -> aeenc.AsyncClient:
        if not clients:
            clients.append(aeenc.connect_async(**targets.options()))
        return clients[0]

    @server.tool(description=RETRIEVE)
    async def retrieve(
        corpus: Corpus,
        text: Annotated[str, Field(description="What is to be explained: a hypothesis in one sentence.")],
        k: Annotated[int, Field(ge=1, le=MAX_K)] = 10,
        mode: Ways = "dense",
        accepted: Annotated[list[str], Field(description="Ids of premises already accepted.")] = [],  # noqa: B006
        label: Label = None,
        version: Version = None,
    ) -> Premises:
        with readable_errors():
            found = await client().index.retrieve(
                corpus,
                [text],
                k=k,
                mode=mode,
                accepted=[accepted] if accepted else (),
                label=label,
                version=version,
                truncate=True,
            )
        ranked = [RankedPremise(hit.id, hit.text, hit.score, rank) for rank, hit in enumerate(found[0], start=1)]
        return Premises(ranked, found.model_version, found.generation)

    @server.tool(description=EXPLAIN)
    async def explain(
        corpus: Corpus,
        hypothesis: str,
        k: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="Premises for each text.")] = 3,
        depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="Levels below the hypothesis.")] = 2,
        mode: Ways = "dense",
        label: Label = None,
        version: Version = None,
    ) -> PremiseTree:
        with readable_errors():
            return await build_tree(
                client().index, corpus, hypothesis, k=k, depth=depth, mode=mode, label=label, version=version
            )

    @server.tool(description=STATUS)
    async def status() -> dict[str, Any]:
        with readable_errors():
            return report_of(targets, await ask(targets))

    return server


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turns errors of `aeenc` into such that the model reads; others stay hidden from it."""
    try:
        yield
    except aeenc.AeencError as error:
        raise ToolError(f"{error.code}: {error}") from error
