"""What explained what: a Milvus keeps nothing of it, since the prior that learns from it is not in this back end."""

from __future__ import annotations

from collections.abc import Iterable

from aeenc import errors
from services.index.explanations import Explanation


class NoExplanations:
    """Refuses explanations by name."""

    async def put(self, corpus: str, explanations: Iterable[Explanation], *, replace: bool) -> int:  # noqa: ARG002
        """Raises Unimplemented."""
        raise errors.Unimplemented(
            f"PutExplanations is not in the back end milvus, which has no prior to learn from those of {corpus!r}; use "
            "AEENC_INDEX_BACKEND=faiss"
        )
