"""Health check of containers, and of `aeenc up`.

`python -m services.kit.healthcheck HOST:PORT [--tcp]` exits with 0 when the server there serves.

Asks grpc.health.v1, which needs no token, by TLS with `--ca`, and with `--cert` and `--key` where clients show one.
`--tcp` only connects, for servers without that service (an oracle). `--service NAME` in place of an address takes port
and TLS from the variables of that service of this container.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 5.0
PORTS = {"encoder": 50051, "index": 50052, "sampler": 50053, "trainer": 50054}  # by default


def serves(target: str, ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> bool:
    """Whether the server at `target` says SERVING within 5 s; it is shown the certificate if there is one."""
    options = [("grpc.enable_http_proxy", 0)]  # it asks its own machine, whatever proxy Docker has set
    if ca is None:
        channel = grpc.insecure_channel(target, options)
    else:
        pair = (key.read_bytes(), cert.read_bytes()) if key and cert else ()
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(ca.read_bytes(), *pair), options)
    with channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def service_serves(name: str) -> bool:
    """Whether the service of this container serves where its variables say, shown its own certificate."""
    own = {key.removeprefix(f"AEENC_{name.upper()}_"): value for key, value in os.environ.items() if value}
    target = f"localhost:{own.get('PORT') or PORTS[name]}"
    files = {key: Path(own[key]) for key in ("TLS_CERT", "TLS_KEY", "PEER_CA") if key in own}
    cert = files.get("TLS_CERT")
    return serves(target, files.get("PEER_CA", cert) if cert else None, cert, files.get("TLS_KEY"))


def connects(target: str) -> bool:
    """Whether something listens at `target`."""
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S):
            return True
    except OSError:
        return False


def main() -> None:
    """Checks the target that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="")
    parser.add_argument("--service", choices=PORTS)
    parser.add_argument("--tcp", action="store_true")
    for name in ("ca", "cert", "key"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    if given.service:
        healthy = service_serves(given.service)
    else:
        healthy = connects(given.target) if given.tcp else serves(given.target, given.ca, given.cert, given.key)
    sys.exit(0 if healthy else 1)


if __name__ == "__main__":
    main()
