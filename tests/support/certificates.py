"""Certificates made with openssl, for connections by TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def certify(folder: Path, name: str, *, hosts: str = "DNS:localhost") -> tuple[Path, Path]:
    """Makes a self-signed certificate for hosts, as openssl writes alternative names, and returns it and its key."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -addext"
    words = [*command.split(), f"subjectAltName={hosts}", "-keyout", key, "-out", cert]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key
