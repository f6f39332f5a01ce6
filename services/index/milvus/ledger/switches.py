"""Which collection of a corpus counts: the aliases of the corpus have numbers, and the highest one decides.

    PREFIX_active_CORPUS_7 ────► the collection of the active generation
    PREFIX_active_CORPUS_6 ────► the records: this number is spent, and nobody can take it again
    PREFIX_explained_CORPUS_3 ─► the table of the corpus's explanations

Milvus changes rows and aliases without a condition, but makes an alias only where there is none. So a switch is the
making of the next number: of two processes that saw the same one, one makes it, and the other looks again. Every method
blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from services.index.milvus.link import MilvusLink, MilvusNotFound

KEPT = 16  # spent numbers: more switches than that cannot happen between another process's last look and its call
LOOKS = 5  # at aliases that others remove meanwhile


@dataclass(frozen=True)
class Switch:
    """The last switch of a corpus: its number, and the collection that counts since."""

    number: int
    collection: str


class Switches:
    """The aliases of one kind of all corpora. `spent` is the collection that spent numbers point to."""

    def __init__(self, link: MilvusLink, prefix: str, spent: str, kind: Literal["active", "explained"]) -> None:
        self._link, self._spent = link, spent
        self._start = f"{prefix}_{kind}_"
        self._pattern = re.compile(rf"{re.escape(self._start)}((?:[0-9a-f]{{2}})+)_(\d+)")

    def last(self) -> Mapping[str, Switch]:
        """Finds the last switch of each corpus."""
        for look in range(LOOKS):
            highest = {corpus: max(numbers) for corpus, numbers in self._numbers().items()}
            try:
                return {
                    corpus: Switch(number, self._collection(self._alias(corpus, number)))
                    for corpus, number in highest.items()
                }
            except MilvusNotFound:  # spent and removed since it was listed
                if look == LOOKS - 1:
                    raise
        return {}

    def make(self, corpus: str, number: int, collection: str) -> bool:
        """Makes a switch of the next number. Returns False if another process has made one of this number."""
        alias = self._alias(corpus, number)
        try:
            self._link.call("create_alias", collection_name=collection, alias=alias)
        except Exception:  # whatever Milvus calls it, and also when it was made and the answer was lost
            try:
                return self._collection(alias) == collection
            except MilvusNotFound:
                pass  # it is not there: the failure was another
            raise
        return True

    def spend(self, corpus: str, before: int) -> None:
        """Takes the numbers before a switch from their collections, and removes the oldest."""
        for number in self._numbers().get(corpus, ()):
            alias = self._alias(corpus, number)
            if number < before - KEPT:
                self._link.call("drop_alias", alias=alias)
            elif number == before - 1:
                self._link.call("alter_alias", collection_name=self._spent, alias=alias)

    def release(self, collection: str) -> None:
        """Spends the numbers that still point to a collection, so that it can be dropped."""
        with suppress(MilvusNotFound):  # a build that was killed early has no collection
            for alias in self._link.call("list_aliases", collection_name=collection)["aliases"]:
                self._link.call("alter_alias", collection_name=self._spent, alias=alias)

    def _numbers(self) -> Mapping[str, list[int]]:
        """The numbers of each corpus."""
        found: dict[str, list[int]] = {}
        for alias in self._link.call("list_aliases")["aliases"]:
            if named := self._pattern.fullmatch(alias):
                found.setdefault(bytes.fromhex(named[1]).decode(), []).append(int(named[2]))
        return found

    def _collection(self, alias: str) -> str:
        return str(self._link.call("describe_alias", alias=alias)["collection_name"])

    def _alias(self, corpus: str, number: int) -> str:
        name = corpus.encode().hex()  # Milvus allows no dots and dashes in names
        return f"{self._start}{name}_{number}"
