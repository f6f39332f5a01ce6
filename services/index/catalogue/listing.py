"""Listings page by page. A page token names the last item before, which may be gone by then.

That of premises names their generation and a position instead, so that the listing stays whole across an activation.
That of corpora has no position, so that neither listing takes the other's.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from typing import NoReturn

from aeenc import errors
from services.corpus.generation import PremiseRecord
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.served import ServedGeneration
from services.kit.convert import page_newest_first
from services.kit.limits import Limits
from services.store.artifacts import Artifact

DEFAULT_PAGE = 100


@dataclass(frozen=True)
class PremisePage:
    """Some premises of a generation in order of insertion, and the token of the next page ("": there is none)."""

    premises: list[PremiseRecord]
    next_token: str
    served: ServedGeneration


class Listing:
    """Lists corpora, premises and generations."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self._catalogue = catalogue
        self._limits = limits

    async def premises(self, corpus: str, *, page_size: int, token: str, generation: str) -> PremisePage:
        """Returns a page of premises. Raises NotFound, InvalidArgument for a token of another listing."""
        named, position = _parse(token)
        if token and not position.isdecimal():
            _refuse()
        start = int(position or 0)
        if named and generation and named != generation:
            raise errors.InvalidArgument.field(
                "page_token", f"belongs to generation {named}, the call names {generation}; name the same or none"
            )
        served = await self._catalogue.resolve(corpus, named or generation)
        if start > served.rows:
            _refuse()
        found = await served.page(start, self._page_size(page_size), self._limits.message_bytes)
        page = await asyncio.to_thread(self._cut, found)
        end = start + len(page)
        return PremisePage(page, _token(served.id, end) if end < served.rows else "", served)

    async def generations(self, corpus: str, *, page_size: int, token: str) -> tuple[list[Artifact], str]:
        """Returns a page of generations, newest first, and the next token. Raises InvalidArgument, NotFound."""
        found = await self._catalogue.generations(corpus)
        return page_newest_first(found, lambda one: (one.created_at, one.id), self._page_size(page_size), token)

    def corpora(self, *, page_size: int, token: str) -> tuple[list[tuple[str, ServedGeneration | None]], str]:
        """Returns a page of corpora by name, with their active generations, and the next token.

        Raises InvalidArgument for a token of another listing.
        """
        last, position = _parse(token)
        if position:
            _refuse()
        found = [one for one in self._catalogue.corpora() if one[0] > last]
        page = found[: self._page_size(page_size)]
        return page, _token(page[-1][0]) if len(page) < len(found) else ""

    def _page_size(self, asked: int) -> int:
        return min(asked or DEFAULT_PAGE, self._limits.items)

    def _cut(self, records: list[PremiseRecord]) -> list[PremiseRecord]:
        """Keeps the first premises that surely fit into one message, and at least one."""
        room = self._limits.message_bytes // 2
        for position, record in enumerate(records):
            room -= sum(len(part.encode()) + 8 for part in (record.id, record.text, *record.aliases, *record.splits))
            if room < 0 and position:
                return records[:position]
        return records


def _token(name: str, position: int | str = "") -> str:
    return base64.urlsafe_b64encode(f"{name}:{position}".encode()).decode()


def _parse(token: str) -> tuple[str, str]:
    """Returns the name ("": none) and the position that a token has."""
    if not token:
        return "", ""
    try:
        name, _, position = base64.urlsafe_b64decode(token.encode()).decode().rpartition(":")
    except ValueError:
        _refuse()
    return (name, position) if name else _refuse()


def _refuse() -> NoReturn:
    raise errors.InvalidArgument.field(
        "page_token", "is not from this listing; send next_page_token of the page before"
    )
