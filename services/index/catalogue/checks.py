"""What a process finds of a corpus in the store, and the errors for it, which name corpus, generation and remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aeenc import errors
from services.corpus.generation import folder_of
from services.corpus.moves import Move
from services.store.artifacts import ArtifactStore


@dataclass(frozen=True)
class Look:
    """A corpus as the store has it now: its latest move, and the generations at that move or later.

    `has_deleted`: deleted generations still lie there (looked up only now and then). `is_replaced`: the generation that
    serves was replaced by the same content.
    """

    move: Move
    ids: Sequence[str]
    has_deleted: bool
    is_replaced: bool


@dataclass(frozen=True)
class FailedOpening:
    """A move whose generation could not be opened, and until when it is not tried again: a try may fetch gigabytes."""

    move: int
    error: Exception
    pause_s: float
    again_at: float  # by time.monotonic()


def unreadable(error: OSError) -> errors.DataLoss:
    """The error for files that the disk does not give out."""
    return errors.DataLoss(
        f"{error.filename or 'a file'} cannot be read ({error.strerror or error}); mend the disk or the permissions "
        "and start again, or activate another generation"
    )


def problem_of(corpus: str, error: Exception) -> errors.AeencError:
    """The error that callers get for a corpus whose active generation could not be opened."""
    if isinstance(error, errors.AeencError):
        return error
    if isinstance(error, OSError):
        return unreadable(error)
    return errors.Unavailable(
        f"the active generation of corpus {corpus!r} cannot be opened ({type(error).__name__}: {error}); it is tried "
        "again, or activate another generation"
    )


def check_known(corpus: str, known: Collection[str]) -> None:
    """Raises NotFound for a corpus that is not among the known ones."""
    if corpus not in known:
        names = ", ".join(sorted(known)[:10]) or "none yet"
        remedy = "build it (BuildGeneration, `aeenc corpus build`)"
        raise errors.NotFound(f"corpus {corpus!r} is unknown (known: {names}); {remedy}")


def check_expected(corpus: str, active: str | None, expected: str | None) -> None:
    """Raises Aborted when a generation other than the expected one is active ("": none; None: any may be)."""
    if expected is not None and expected != (active or ""):
        raise errors.Aborted(
            f"corpus {corpus!r} has {active or 'no generation'} active, expected {expected or 'none'}; "
            "call ListGenerations again before you activate"
        )


def check_inactive(corpus: str, generation_id: str, active: str | None) -> None:
    """Raises FailedPrecondition for the active generation."""
    if generation_id == active:
        raise errors.FailedPrecondition(
            f"generation {generation_id} is the active one of corpus {corpus!r}; activate another one first"
        )


def none_active(corpus: str) -> errors.NotFound:
    """The error for a corpus without an active generation."""
    return errors.NotFound(f"corpus {corpus!r} has no active generation; activate one that ListGenerations shows")


def damage_of(store: ArtifactStore, corpus: str, generation_id: str, *, active: bool) -> dict[str, str]:
    """Says of a damaged generation what a repair needs to know."""
    known = {"generation": generation_id, "active": str(active).lower()}
    try:
        artifact, damaged = store.damaged_files(folder_of(corpus), generation_id)
    except (errors.AeencError, OSError):  # its manifest is damaged: nothing else is known
        return known
    return {**known, "space_id": str(artifact.meta.get("space_id", "")), "damaged": ",".join(damaged)}
