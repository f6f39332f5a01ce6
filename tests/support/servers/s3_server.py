"""An S3 server of moto's in a process of its own, with the bucket `bucket`. Its objects are gone when it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.pinned_venv import PinnedVenv

PACKAGES = ("s3fs>=2025.9", "moto[server]>=5")
SECRET = "do-not-tell"
_SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address=sys.argv[1], port=0)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server(home: Path, host: str = "127.0.0.1") -> Iterator[tuple[subprocess.Popen[str], Mapping[str, str]]]:
    """Installs the packages below `home` and runs the server for a block.

    Yields its process, and the environment by which a Python process finds s3fs, the server and its credentials.
    """
    venv = PinnedVenv(home / "venv")
    venv.create()
    venv.install(*PACKAGES)
    [packages] = (home / "venv" / "lib").glob("python*/site-packages")
    with subprocess.Popen(
        [str(venv.python), "-c", _SERVE, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        port = next(line for line in iter(server.stdout.readline, "") if line.strip().isdigit()).strip()
        environment = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "PYTHONPATH": str(packages),
        }
        command = [str(venv.python), "-c", "import s3fs; s3fs.S3FileSystem().mkdir('bucket')"]
        subprocess.run(command, check=True, env={**os.environ, **environment})
        try:
            yield server, environment
        finally:
            server.kill()
