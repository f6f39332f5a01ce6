"""Folds streamed premises: checks each one, and makes those with the same text one premise.

Texts are the same when they are equal or, where the build asks for it, say the same. The order of insertion is
the order in which a text was first seen. It is the ordinal that breaks ties in searches, so nothing here sorts. This
module knows neither vectors nor the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.corpus.sameness import same_key
from services.index.values import FoldingRule
from services.kit.limits import Limits

ID_BYTES = 256
SPLIT_BYTES = TAG_BYTES = 64
TAGS = 256  # of a premise
TAG_RULE = f"a tag has 1 to {TAG_BYTES} bytes, no comma, no blank at its ends and no hyphen before it"


@dataclass
class Draft:
    """A distinct premise in the making. It takes over the vector of the base generation at `base_ordinal`."""

    id: str
    text: str
    aliases: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    base_ordinal: int | None = None

    def record(self) -> PremiseRecord:
        """The premise as stored. Splits and tags are sorted, each once: the order of duplicates changes no file."""
        splits, tags = tuple(sorted({*self.splits})), tuple(sorted({*self.tags}))
        return PremiseRecord(self.id, self.text, tuple(self.aliases), splits, tags)


class Folding:
    """Collects the premises of one build. A premise with the text of an earlier one becomes an alias of that one.

    Premises of a base generation stay as they are, whatever `rule` says.
    """

    def __init__(self, limits: Limits, rule: FoldingRule = "EXACT") -> None:
        self.drafts: list[Draft] = []
        self.received = 0
        self.rule = rule
        self._limits = limits
        self._by_text: dict[str, Draft] = {}
        self._ids: set[str] = set()
        self._base_texts: dict[str, int] = {}

    def start_from(self, premises: Sequence[PremiseRecord], delete_ids: Iterable[str]) -> None:
        """Takes over a base generation's premises without `delete_ids`. Call it before `add`.

        A premise is dropped when all its ids are deleted; otherwise its first remaining id names it. Raises
        InvalidArgument for ids that the base does not have.
        """
        self._base_texts = {premise.text: ordinal for ordinal, premise in enumerate(premises)}
        deleted = set(delete_ids)
        known = {one for premise in premises for one in (premise.id, *premise.aliases)}
        if unknown := deleted - known:
            raise errors.InvalidArgument.field(
                "header.delete_ids", f"the base generation has no premise {min(unknown)!r}; leave it out"
            )
        for ordinal, premise in enumerate(premises):
            ids = [one for one in (premise.id, *premise.aliases) if one not in deleted]
            if ids:
                self._keep(Draft(ids[0], premise.text, ids[1:], list(premise.splits), list(premise.tags), ordinal))
                self._ids.update(ids)

    def add(self, premises: Iterable[PremiseRecord]) -> None:
        """Adds premises in the order of insertion. Raises InvalidArgument naming the first bad one."""
        for premise in premises:
            self._check(premise)
            self.received += 1
            self._ids.update((premise.id, *premise.aliases))
            draft = self._by_text.get(self._key(premise.text))
            if draft is None:
                known = self._base_texts.get(premise.text)
                names = list(premise.aliases), list(premise.splits), list(premise.tags)
                self._keep(Draft(premise.id, premise.text, *names, known))
            else:
                draft.aliases += [premise.id, *premise.aliases]
                draft.splits += [split for split in premise.splits if split not in draft.splits]
                draft.tags += [tag for tag in premise.tags if tag not in draft.tags]

    def _keep(self, draft: Draft) -> None:
        self.drafts.append(draft)
        self._by_text.setdefault(self._key(draft.text), draft)

    def _key(self, text: str) -> str:
        return same_key(text) if self.rule == "NORMALIZED" else text

    def _check(self, premise: PremiseRecord) -> None:
        where = f"premises[{self.received}]"
        check_premise(premise, where, self._limits)
        for name, one in _ids_of(premise):
            if one in self._ids:
                raise errors.InvalidArgument.field(
                    f"{where}.{name}", f"{one!r} is taken by an earlier premise; give each premise its own id"
                )


def check_premise(premise: PremiseRecord, where: str, limits: Limits) -> None:
    """Raises InvalidArgument for a premise that no build takes, TooLarge for one that is too long."""
    for name, one in _ids_of(premise):
        if not one or len(one.encode()) > ID_BYTES:
            shown = f"{one[:40]!r}… has {len(one.encode()):,} bytes" if one else "is empty"
            raise errors.InvalidArgument.field(f"{where}.{name}", f"{shown}; give 1 to {ID_BYTES} bytes")
    own = (premise.id, *premise.aliases)
    if len(set(own)) != len(own):
        raise errors.InvalidArgument.field(f"{where}.aliases", f"{premise.id!r} names an id twice; name it once")
    if not premise.text.strip():
        raise errors.InvalidArgument.field(f"{where}.text", f"is empty (id {premise.id!r}); give a sentence")
    if len(premise.text.encode()) > limits.text_bytes:
        problem = f"{len(premise.text.encode()):,} bytes (id {premise.id!r}), the limit is {limits.text_bytes:,}"
        violation = errors.FieldViolation(f"{where}.text", problem)
        raise errors.TooLarge(f"{where}.text: {problem}; shorten it", violations=[violation])
    if any(not split or len(split.encode()) > SPLIT_BYTES for split in premise.splits):
        raise errors.InvalidArgument.field(f"{where}.splits", f"a split has 1 to {SPLIT_BYTES} bytes; name it so")
    if len(premise.tags) > TAGS or not all(map(is_tag, premise.tags)):
        raise errors.InvalidArgument.field(f"{where}.tags", f"has more than {TAGS}, or a wrong one; {TAG_RULE}")


def is_tag(tag: str) -> bool:
    """Whether a text may be a tag; see `TAG_RULE`."""
    return 0 < len(tag.encode()) <= TAG_BYTES and tag == tag.strip() and "," not in tag and not tag.startswith("-")


def _ids_of(premise: PremiseRecord) -> list[tuple[str, str]]:
    """All ids of a premise, each with the name of its field."""
    return [("id", premise.id), *(("aliases", alias) for alias in premise.aliases)]
