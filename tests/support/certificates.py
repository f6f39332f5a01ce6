"""Certificates made with openssl, for connections by TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates")


def certify(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of localhost and its key, signed by itself."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -addext"
    words = [*command.split(), "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key
