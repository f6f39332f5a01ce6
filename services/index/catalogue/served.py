"""What is open for search: generations, with their premises and their indexes by vector and by word, and explanations.

A generation is immutable, so callers share it without a lock. The catalogue decides which one serves a corpus.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from aeenc import errors
from services.corpus.active import latest_move, note_change
from services.corpus.arrays import NORM_TOLERANCE, are_unit
from services.corpus.generation import Generation, PremiseRecord, folder_of
from services.corpus.moves import Move, MoveRequest
from services.index.dense.approximate import OpenIndex, SearchIndex, open_index
from services.index.dense.batcher import SearchBatcher
from services.index.lexical.bm25 import LexicalIndex
from services.index.values import ALL, Explanation, Scope, Selection
from services.kit.concurrency import Turns, run_in_thread
from services.kit.limits import AnswerRoom
from services.store.artifacts import ArtifactStore
from services.store.formats import check_format, damage_is_data_loss

SELF_QUERIES = 32
MOST_LOST = 0.1  # share of its own vectors that an approximate engine may overlook at most
PINNED_BYTES = 8 * 1024**3
FOLDER = ".explanations"
FORMAT_VERSION = 1
EXPLANATIONS_BYTES = 64 * 1024 * 1024  # of a call, and of a corpus in its file: memory holds them


@dataclass(frozen=True, eq=False)
class ServedGeneration:
    """A generation open for search. Opening reads its tables, or all of an old generation; do so in a thread."""

    generation: Generation
    index: SearchIndex
    lexical: LexicalIndex | None = None

    @classmethod
    def of(cls, generation: Generation, opened: OpenIndex = open_index) -> ServedGeneration:
        """Opens the indexes of a generation. Raises DataLoss naming the damaged file."""
        lexical = LexicalIndex.open(generation.artifact, len(generation.premises))
        return cls(generation, opened(generation), lexical)

    @property
    def id(self) -> str:
        """The generation's id."""
        return self.generation.id

    @property
    def stands(self) -> bool:
        """Whether its files are still those on disk: not deleted, nor replaced by the same content."""
        return self.generation.held is None or self.generation.held.stands()

    def page(self, start: int, count: int, most_bytes: int) -> list[PremiseRecord]:
        """Returns at most `count` premises from the ordinal `start` on, in order of insertion. It reads from disk.

        At least one; the page ends before the first that takes it over `most_bytes`.
        """
        found: list[PremiseRecord] = []
        for ordinal in range(start, min(start + count, self.index.rows)):
            record = self.generation.premises[ordinal]
            names = (record.id, record.text, *record.aliases, *record.splits, *record.tags)
            most_bytes -= sum(len(name.encode()) + 8 for name in names)
            if most_bytes < 0 and found:
                break
            found.append(record)
        return found

    def select(self, scope: Scope) -> Selection:
        """Turns a scope into a selection. An alias stands for its premise; unknown ids to exclude have no effect.

        Raises NotFound for other ids that the generation lacks.
        """
        if not (scope.exclude_ids or scope.splits or scope.only_ids or scope.before_id or scope.clauses):
            return ALL  # the same one for all, which is soon compared
        ordinals = self.generation.premises.ordinal_by_id
        excluded = (ordinals.get(premise_id) for premise_id in scope.exclude_ids)
        known = self._ordinals_of((*scope.only_ids, *([scope.before_id] if scope.before_id else [])))
        return Selection(
            frozenset(scope.splits),
            frozenset(ordinal for ordinal in excluded if ordinal is not None),
            scope.clauses,
            frozenset(known[one] for one in scope.only_ids) if scope.only_ids else None,
            known.get(scope.before_id),
        )

    def unknown(self, scope: Scope) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Lists the scope's splits, and its tags, that no premise has, sorted."""
        premises, tags = self.generation.premises, {tag for clause in scope.clauses for of in clause for tag in of}
        return tuple(sorted(set(scope.splits) - premises.splits)), tuple(sorted(tags - premises.tags))

    def allowed(self, selection: Selection) -> NDArray[np.bool_] | None:
        """Turns a selection into a mask over ordinals (premises,); None allows all."""
        if selection == ALL:
            return None
        mask = self.generation.premises.passing(selection.splits, selection.clauses)
        if selection.only is not None:
            named = np.zeros(self.index.rows, dtype=bool)
            named[list(selection.only)] = True
            mask = mask & named
        if selection.excluded or selection.before is not None:
            mask = mask.copy()
            mask[list(selection.excluded)] = False
            mask[self.index.rows if selection.before is None else selection.before :] = False
        return mask

    def find_all(self, ids: Sequence[str], most_bytes: int) -> list[PremiseRecord]:
        """Finds premises by id or alias, in the order given. It reads from disk.

        Raises NotFound naming the first unknown ones, TooLarge as soon as their texts take more than `most_bytes`.
        """
        known, found, room = self._ordinals_of(ids), [], AnswerRoom(most_bytes)
        for premise_id in ids:
            record = self.generation.premises[known[premise_id]]
            room.take(len(record.id) + len(record.text))
            found.append(record)
        return found

    def _ordinals_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Looks up ids and aliases. Raises NotFound naming the first few unknown ones."""
        ordinals = self.generation.premises.ordinal_by_id
        known = {one: ordinal for one in ids if (ordinal := ordinals.get(one)) is not None}
        if unknown := [one for one in ids if one not in known]:
            more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
            raise errors.NotFound(
                f"generation {self.id} of corpus {self.generation.corpus!r} has no premise "
                f"{', '.join(map(repr, unknown[:5]))}{more}; call ListPremises to see what there is"
            )
        return known

    def accepted(self, text: int, ids: Sequence[str]) -> list[int]:
        """The premises accepted for the text at a position, in the caller's order, each once.

        Raises InvalidArgument for an id that the generation does not have.
        """
        known = self.generation.premises.ordinal_by_id
        if unknown := [one for one in ids if one not in known]:
            raise errors.InvalidArgument.field(
                f"accepted[{text}].premise_ids",
                f"{unknown[0]!r} is not a premise of generation {self.id}; send ids that Retrieve returned",
            )
        return list(dict.fromkeys(known[one] for one in ids))

    def check_vectors(self, vectors: NDArray[np.float32], space_id: str) -> None:
        """Refuses vectors (n, dim) of another space or dimension than the generation's."""
        own, dim = self.generation, vectors.shape[1]
        if not space_id:
            raise errors.InvalidArgument.field("space_id", "is empty; send the space_id that Encode returned")
        if space_id != own.space_id:
            raise errors.SpaceMismatch(
                f"vectors are of space {space_id}, generation {own.id} of corpus {own.corpus!r} is of {own.space_id}; "
                "encode in that space, or activate a generation of that space",
                metadata={"vectors": space_id, "corpus": own.space_id},
            )
        if dim != own.dim:
            raise errors.InvalidArgument.field(
                "vectors.dim", f"vector has {dim} dimensions, corpus {own.corpus!r} has {own.dim}; encode in its space"
            )


async def check_by_searching(batcher: SearchBatcher, candidate: ServedGeneration) -> None:
    """Raises DataLoss unless a sample of vectors has unit length and each finds itself first.

    An approximate engine may overlook a few.
    """
    rows = candidate.index.rows
    sample = np.unique(np.linspace(0, rows - 1, num=min(rows, SELF_QUERIES), dtype=np.int64))
    vectors = candidate.index.vectors[sample].astype(np.float32)
    if is_sound := are_unit(vectors):
        found = await batcher.search(candidate, vectors, 1, ALL, is_check=True)
        # compares scores and not ordinals: an equal vector with a lower ordinal comes first
        lost = sum(abs(float(one.scores[0]) - 1.0) > 2 * NORM_TOLERANCE for one in found)
        is_sound = lost <= (0 if candidate.index.exact else len(sample) * MOST_LOST)
    if not is_sound:
        path = candidate.generation.artifact.path
        raise errors.DataLoss(f"{path}: vectors do not find themselves; build the generation again")


class OpenGenerations:
    """The generations that are open: the active one of each corpus, and those that callers have `pinned` last.

    `known` are all that somebody uses, also those that are checked before they serve.
    """

    def __init__(self, pinned: int = 4, pinned_bytes: int = PINNED_BYTES) -> None:
        self.active: dict[str, ServedGeneration] = {}
        self.pinned: OrderedDict[tuple[str, str], ServedGeneration] = OrderedDict()
        self.known: WeakValueDictionary[tuple[str, str], ServedGeneration] = WeakValueDictionary()
        self._most, self._most_bytes = pinned, pinned_bytes

    def find(self, corpus: str, generation_id: str = "") -> ServedGeneration | None:
        """Returns the active generation of a corpus if it is the one named, or none is."""
        active = self.active.get(corpus)
        return active if active is not None and generation_id in {"", active.id} else None

    def pin(self, corpus: str, served: ServedGeneration) -> None:
        """Keeps a generation open, and closes those that were wanted longest ago; one may be larger than all may be."""
        self.pinned[corpus, served.id] = served
        self.pinned.move_to_end((corpus, served.id))
        while len(self.pinned) > 1 and self._is_over():
            self.pinned.popitem(last=False)

    def _is_over(self) -> bool:
        size_bytes = sum(one.generation.artifact.size_bytes for one in self.pinned.values())
        return len(self.pinned) > self._most or size_bytes > self._most_bytes

    def keep(self, corpus: str, ids: Collection[str]) -> None:
        """Closes the pinned generations of a corpus that are not among `ids`."""
        for key in [key for key in self.pinned if key[0] == corpus and key[1] not in ids]:
            del self.pinned[key]


class Explanations:
    """The explanations of each corpus, which the prior learns from: in the store, and in memory once needed."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._changing = Turns()  # a large corpus holds up no other
        self._known: dict[str, list[Explanation]] = {}
        self._forgotten = Counter[str]()  # times, by corpus

    async def put(self, corpus: str, explanations: Iterable[Explanation], *, replace: bool) -> tuple[int, Move]:
        """Adds explanations, or replaces all of them. They are durable when it returns their number, and the move.

        A hypothesis put twice keeps the premises of both. Raises TooLarge for more than EXPLANATIONS_BYTES of a corpus.
        """
        async with self._changing.of(corpus):
            try:  # a cancelled call changes what is on disk and what is in memory, or neither
                return await run_in_thread(self._put, corpus, list(explanations), replace)
            finally:
                self.forget(corpus)

    def forget(self, corpus: str) -> None:
        """Reads the explanations again when they are next needed: another process may have changed them."""
        self._forgotten[corpus] += 1
        self._known.pop(corpus, None)

    async def of(self, corpus: str) -> list[Explanation]:
        """Returns the explanations of a corpus, the same list until they change.

        Raises FailedPrecondition when there are none.
        """
        if (known := self._known.get(corpus)) is not None:
            return known
        async with self._changing.of(corpus):
            found = self._known.get(corpus)  # read while this call waited
            if found is None:
                times = self._forgotten[corpus]
                found = await asyncio.to_thread(self.latest, corpus)
                if found and times == self._forgotten[corpus]:  # else others have changed them meanwhile
                    self._known[corpus] = found
        if not found:
            raise errors.FailedPrecondition(
                f"corpus {corpus!r} has no explanations for the prior to learn from; put some: `aeenc corpus explain "
                f"{corpus} --run RUN` (PutExplanations), or set prior to 0"
            )
        return found

    def _put(self, corpus: str, added: Sequence[Explanation], is_all: bool) -> tuple[int, Move]:
        """Joins explanations with those in the store in a new file, which the move names."""
        total, before = 0, ""

        def decide(last: Move) -> Move:
            nonlocal total, before
            before, now = last.explanations, joined([] if is_all else self.latest(corpus), added)
            total = len(now)
            name = f"{last.number + 1:012}-{uuid.uuid4().hex[:8]}.json"  # two may try the same number
            record = {"format_version": FORMAT_VERSION, "explanations": [[one.text, one.premise_ids] for one in now]}
            content = json.dumps(record, ensure_ascii=False).encode()
            if len(content) > EXPLANATIONS_BYTES:
                raise errors.TooLarge(
                    f"corpus {corpus!r} would have {len(content):,} bytes of explanations, the limit is "
                    f"{EXPLANATIONS_BYTES:,}; put fewer, with replace"
                )
            self._store.documents.write(_key(corpus, name), content)
            return replace(last, explanations=name)

        move = note_change(self._store, corpus, MoveRequest("explain"), decide)
        for old in self._store.documents.names(f"{folder_of(corpus)}/{FOLDER}"):
            if old < before:  # that one somebody may be reading
                self._store.documents.remove(_key(corpus, old))
        return total, move

    def latest(self, corpus: str) -> list[Explanation]:
        """Reads the explanations that the last move names. Raises DataLoss for damaged ones, NewerFormat."""
        name = latest_move(self._store, corpus).explanations
        if not name:
            return []
        key = _key(corpus, name)
        try:
            with damage_is_data_loss(key, "put the explanations again, with replace"):
                record: Mapping[str, Any] = json.loads(self._store.documents.read(key) or b"")
                check_format(record, FORMAT_VERSION, key)
                return [Explanation(str(text), tuple(map(str, ids))) for text, ids in record["explanations"]]
        except errors.DataLoss:
            if latest_move(self._store, corpus).explanations != name:  # replaced meanwhile, and removed
                return self.latest(corpus)
            raise


def joined(before: Iterable[Explanation], added: Iterable[Explanation]) -> list[Explanation]:
    """Joins explanations; a hypothesis that stands twice keeps the premises of both."""
    found: dict[str, dict[str, None]] = {}
    for one in (*before, *added):
        found.setdefault(one.text, {}).update(dict.fromkeys(one.premise_ids))
    return [Explanation(text, tuple(ids)) for text, ids in found.items()]


def _key(corpus: str, name: str) -> str:
    return f"{folder_of(corpus)}/{FOLDER}/{name}"
