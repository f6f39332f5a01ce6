"""The encoder of query texts as the index asks it: within the caller's time, and named when it does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aeenc import errors
from aeenc.encoded import Encoded
from aeenc.encoder import EncoderClient

if TYPE_CHECKING:
    from services.index.retrieval import TextQuery

ANSWER_SHARE = 0.9  # of the caller's time that the encoder may take, so that its failure still arrives


class QueryEncoder:
    """Encodes the texts of Retrieve calls. `on_encoder` is told what is wrong with the encoder ("" when it answers)."""

    def __init__(
        self,
        encoder: EncoderClient,
        *,
        timeout_s: float = 10.0,
        on_encoder: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._encoder = encoder
        self._timeout_s = timeout_s
        self._on_encoder = on_encoder

    async def encode(self, query: TextQuery, space_id: str, *, deadline_s: float | None = None) -> Encoded:
        """The texts' vectors (n, dim) in `space_id`. Raises what the encoder raises, and Unavailable naming it."""
        timeout_s = self._timeout_s
        if deadline_s is not None:
            timeout_s = min(timeout_s, deadline_s * ANSWER_SHARE)
        try:
            encoded = await self._encoder.encode(
                query.texts,
                role="query",
                label=query.label,
                version=query.version,
                space_id=space_id,
                truncate=query.truncate,
                precision=query.precision,
                routing_key=query.routing_key,
                request_id=query.request_id,
                timeout_s=max(timeout_s, 0.001),
            )
        except errors.Unavailable as error:
            target = self._encoder.channel.target
            self._on_encoder(f"no encoder answers at {target}; Retrieve is away, Search works")
            raise errors.Unavailable(
                f"the encoder at {target} does not answer ({error.message}); start it, or call Search with vectors",
                retry_after_s=error.retry_after_s,
            ) from None
        self._on_encoder("")
        return encoded
