"""What the index lacks at the moment, as one readiness: a damaged corpus or an absent encoder degrade it, no more."""

from __future__ import annotations

from collections.abc import Callable

from services.kit.readiness import Readiness


class Condition:
    """Collects what is wrong by source and keeps the readiness in step. Before `open` it only collects."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._wrong: dict[str, str] = {}
        self._is_open = False

    def source(self, name: str) -> Callable[[str], None]:
        """A listener for one source; it takes what is wrong, "" for nothing."""

        def report(reason: str) -> None:
            if self._wrong.get(name, "") != reason:
                self._wrong[name] = reason
                self._tell()

        return report

    def open(self) -> None:
        """The service answers from now on."""
        self._is_open = True
        self._tell()

    def _tell(self) -> None:
        reasons = "; ".join(reason for reason in self._wrong.values() if reason)
        if not self._is_open:
            return
        if reasons:
            self._readiness.degraded(reasons)
        else:
            self._readiness.serving()
