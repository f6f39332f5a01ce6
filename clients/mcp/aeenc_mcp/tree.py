"""A tree of premises for a hypothesis, by conditioned retrieval alone: nobody judges and nothing is concluded.

hypothesis ─► best premise ─► best premise given the first ─► … k of them, then the same for each of these
"""

from __future__ import annotations

from dataclasses import dataclass

from aeenc import IndexClient
from aeenc.calls.retrieval import Mode


@dataclass(frozen=True)
class TreePremise:
    """One premise: found as number `rank` for `parent`, another premise's id ("": the hypothesis), `depth` steps down.

    `score` is that of the search that found it, on what its parent's earlier premises left unexplained.
    """

    id: str
    text: str
    score: float
    rank: int
    parent: str
    depth: int


@dataclass(frozen=True)
class PremiseTree:
    """The premises in the order in which they were found, breadth first; each stands once in the tree."""

    hypothesis: str
    premises: list[TreePremise]
    outline: str
    model_version: str
    generation: str


async def build_tree(
    index: IndexClient,
    corpus: str,
    hypothesis: str,
    *,
    k: int,
    depth: int,
    mode: Mode,
    label: str | None = None,
    version: str | None = None,
) -> PremiseTree:
    """Builds a tree of at most k + k² + … + k^depth premises, with as many searches, one after another.

    All use the encoder and the generation that answered the first one.
    """
    premises: list[TreePremise] = []
    answered_by, generation = "", ""
    level = [("", hypothesis)]
    for steps in range(1, depth + 1):
        below: list[tuple[str, str]] = []
        for parent, text in level:
            accepted: list[str] = []
            for rank in range(1, k + 1):
                found = await index.retrieve(
                    corpus,
                    [text],
                    k=1,
                    mode=mode,
                    label=None if answered_by else label,
                    version=answered_by or version,
                    generation=generation,
                    accepted=[accepted] if accepted else (),
                    exclude=[one.id for one in premises],
                    truncate=True,
                )
                answered_by, generation = found.model_version, found.generation
                if not found[0]:
                    break
                hit = found[0][0]
                premises.append(TreePremise(hit.id, hit.text, hit.score, rank, parent, steps))
                accepted.append(hit.id)
                below.append((hit.id, hit.text))
        level = below
    return PremiseTree(hypothesis, premises, outline_of(hypothesis, premises), answered_by, generation)


def outline_of(hypothesis: str, premises: list[TreePremise]) -> str:
    """Writes a tree as indented lines, one a premise, with its id."""
    lines = [hypothesis]

    def add(parent: str) -> None:
        for one in premises:
            if one.parent == parent:
                lines.append(f"{'  ' * one.depth}- {one.text} [{one.id}]")
                add(one.id)

    add("")
    return "\n".join(lines)
