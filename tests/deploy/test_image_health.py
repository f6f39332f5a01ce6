"""The health check of the images: it asks its own container, by the TLS of its variables and by no proxy."""

from __future__ import annotations

import asyncio
import http.server
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from support.certificates import certify, needs_openssl
from support.worlds.sampler_world import serving

ROOT = Path(__file__).resolve().parents[2]
DEAD_PROXY = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


class Page(http.server.BaseHTTPRequestHandler):
    """Answers as the web servers of the images do when they are healthy."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == self.server.healthy_path else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def is_healthy(service: str, **variables: object) -> bool:
    others = {name: value for name, value in os.environ.items() if not name.startswith("AEENC_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {f"AEENC_{service.upper()}_{name}": str(value) for name, value in variables.items()}
    environment = {**others, **DEAD_PROXY, **own, "PATH": path, "AEENC_SERVICE": service, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", ROOT / "deploy" / "healthy"], env=environment, capture_output=True, check=False)
    return done.returncode == 0


@needs_openssl
@pytest.mark.parametrize(("service", "path"), [("gateway", "/health"), ("workbench", "/")])
def test_a_web_server_is_asked_by_its_tls_or_without_and_by_no_proxy(service: str, path: str, tmp_path: Path):
    certificate, key = certify(tmp_path, "server", hosts="DNS:example.org")
    for is_tls in (False, True):
        server = http.server.HTTPServer(("127.0.0.1", 0), Page)
        server.healthy_path = path  # type: ignore[attr-defined]
        if is_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            variables = {"PORT": server.server_port, **({"TLS_CERT": certificate} if is_tls else {})}
            assert is_healthy(service, **variables)
            server.healthy_path = "/elsewhere"  # type: ignore[attr-defined]
            assert not is_healthy(service, **variables)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


async def test_a_service_is_asked_by_no_proxy():
    servicer = health.aio.HealthServicer()
    async with serving(health_pb2_grpc.add_HealthServicer_to_server, servicer) as port:
        assert await asyncio.to_thread(is_healthy, "index", PORT=port)
        await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert not await asyncio.to_thread(is_healthy, "index", PORT=port)
