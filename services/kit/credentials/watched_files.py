"""Files of secrets, such as tokens, passwords and certificates, which may be replaced while a service runs."""

from __future__ import annotations

from pathlib import Path


def read_secret(path: Path | str) -> str:
    """Reads a secret from a file, without white space around it. Raises ValueError, which shows nothing of it."""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"  # a decoder's own message shows the bytes
        raise ValueError(f"{path} cannot be read ({reason}); name another file") from None
    if not secret:
        raise ValueError(f"{path} is empty; write the token or the password into it")
    return secret


class WatchedFiles:
    """Tells when one of some files was written, replaced or taken away since the last look."""

    def __init__(self, *paths: Path | None) -> None:
        self._paths = [path for path in paths if path is not None]
        self._seen = self._stamps()

    def have_changed(self) -> bool:
        """Whether one has changed since the last look, or since the start."""
        before, self._seen = self._seen, self._stamps()
        return self._seen != before

    def forget(self) -> None:
        """Lets the next look find a change: what was found could not be read."""
        self._seen = []

    def _stamps(self) -> list[tuple[int, ...]]:
        stamps: list[tuple[int, ...]] = []
        for path in self._paths:
            try:
                now = path.stat()
                stamps.append((now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns))
            except OSError:
                stamps.append(())
        return stamps
