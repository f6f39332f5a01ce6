"""EntailmentBank's notation.

A context reads `sent1: … sent2: …`, a proof `sent1 & sent2 -> int1: …; int1 & sent3 -> hypothesis; `.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aeenc.errors import InvalidTree
from aeenc.trees.tree import ROOT, Step

_SENTENCE = re.compile(r"(?:^|(?<=\s))(sent\d+): ")
# A step starts at the beginning or after "; ", with labels joined by " & ". Texts may hold `:`, `,` and `;`.
_STEP_START = re.compile(r"(?:^|;\s*)((?:sent|int)\d+(?: & (?:sent|int)\d+)*) -> (int\d+|hypothesis)")
_LABEL = re.compile(r"(?:sent|int)\d+")


def parse_context(context: str) -> dict[str, str]:
    """The sentences of a context by label, in order. Raises InvalidTree for stray text or a label defined twice."""
    starts = list(_SENTENCE.finditer(context))
    if not starts or context[: starts[0].start()].strip():
        raise InvalidTree("the context must read `sent1: … sent2: …`")
    sentences: dict[str, str] = {}
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        label = start.group(1)
        end = following.start() if following else len(context)
        if label in sentences:
            raise InvalidTree(f"the context defines {label!r} twice; number the sentences")
        sentences[label] = context[start.end() : end].removesuffix(" ") if following else context[start.end() :]
    return sentences


def format_context(sentences: Mapping[str, str]) -> str:
    """The context of sentences by label."""
    return " ".join(f"{label}: {text}" for label, text in sentences.items())


def parse_proof(proof: str, hypothesis: str) -> tuple[Step, ...]:
    """The steps of a proof, in order; the root's text is the hypothesis. Raises InvalidTree for what is no proof."""
    starts = list(_STEP_START.finditer(proof))
    if not starts or starts[0].start() != 0:
        raise InvalidTree("the proof must read `sent1 & sent2 -> int1: …; int1 & sent3 -> hypothesis; `")
    steps = []
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        rest = proof[start.end() : following.start() if following else len(proof)]
        conclusion = start.group(2)
        if conclusion == ROOT:
            if rest.strip(" ;"):
                raise InvalidTree(f"`-> {ROOT}` must end its step; found {rest.strip()[:60]!r} behind it")
            text = hypothesis
        elif not rest.startswith(": "):
            raise InvalidTree(f"the conclusion {conclusion!r} has no text; write `-> {conclusion}: …;`")
        else:
            text = rest[2:].rstrip().removesuffix(";") if following is None else rest[2:]
        steps.append(Step(tuple(_LABEL.findall(start.group(1))), conclusion, text))
    return tuple(steps)


def format_proof(steps: Sequence[Step]) -> str:
    """The proof of steps."""
    return "".join(
        f"{' & '.join(s.premises)} -> {s.conclusion}{'' if s.conclusion == ROOT else f': {s.text}'}; " for s in steps
    )
