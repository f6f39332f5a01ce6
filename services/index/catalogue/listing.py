"""Listings page by page. A page token names the last item before, which may be gone by then.

That of premises names their generation and a position instead, so that the listing stays whole across an activation.
That of corpora has no position, so that neither listing takes the other's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.holds import HoldersOf
from services.index.catalogue.served import ServedGeneration
from services.kit.convert import PAGE, page_newest_first, position_of
from services.kit.limits import Limits, check_count
from services.store.artifacts import Artifact


class Listing:
    """Lists corpora, premises and generations."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self._catalogue = catalogue
        self._limits = limits

    async def premises(
        self, corpus: str, *, page_size: int, token: str, generation: str
    ) -> tuple[list[PremiseRecord], str, ServedGeneration]:
        """Returns a page of premises, the next token, and their generation.

        Raises NotFound, InvalidArgument for a token of another listing.
        """
        named, position = _parse(token)
        if token and not position:
            _refuse()
        start = position_of(position)
        if named and generation and named != generation:
            raise errors.InvalidArgument.field(
                "page_token", f"belongs to generation {named}, the call names {generation}; name the same or none"
            )
        served = await self._catalogue.resolve(corpus, named or generation)
        if start > served.index.rows:
            _refuse()
        size, most_bytes = self._page_size(page_size), self._limits.message_bytes // 2
        page = await asyncio.to_thread(served.page, start, size, most_bytes)
        end = start + len(page)
        return page, f"{served.id}:{end}" if end < served.index.rows else "", served

    async def named(self, corpus: str, ids: Sequence[str], generation: str) -> tuple[list[PremiseRecord], str]:
        """Returns premises by id or alias, in the order given, and their generation's id. Raises as `find_all` does."""
        check_count(len(ids), self._limits, "ids")
        served = await self._catalogue.resolve(corpus, generation)
        return await asyncio.to_thread(served.find_all, ids, self._limits.message_bytes), served.id

    async def generations(self, corpus: str, *, page_size: int, token: str) -> tuple[list[Artifact], str, HoldersOf]:
        """Returns a page of generations, newest first, the next token, and who holds which.

        Raises InvalidArgument, NotFound.
        """
        found, held_by = await self._catalogue.generations(corpus)
        size = self._page_size(page_size)
        return *page_newest_first(found, lambda one: (one.created_at, one.id), size, token), held_by

    def corpora(self, *, page_size: int, token: str) -> tuple[list[tuple[str, ServedGeneration | None]], str]:
        """Returns a page of corpora by name, with their active generations, and the next token.

        Raises InvalidArgument for a token of another listing.
        """
        last, position = _parse(token)
        if position:
            _refuse()
        found = [one for one in self._catalogue.corpora() if one[0] > last]
        page = found[: self._page_size(page_size)]
        return page, f"{page[-1][0]}:" if len(page) < len(found) else ""

    def _page_size(self, asked: int) -> int:
        return min(asked or PAGE, self._limits.items)


def _parse(token: str) -> tuple[str, str]:
    """Returns the name ("": none) and the position that a token has."""
    name, _, position = token.rpartition(":")
    return (name, position) if name or not token else _refuse()


def _refuse() -> NoReturn:
    raise errors.InvalidArgument.field(
        "page_token", "is not from this listing; send next_page_token of the page before"
    )
