"""Each pod's command runs as a plain process with the environment that the chart gives it, and answers healthy."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

import aeenc
from aeenc import errors
from aeenc.v1 import types_pb2
from services.launcher.private_redis import start_private_redis
from support.certificates import certify
from support.chart_pods import SETS, Cluster, rendered
from support.models.tiny_base_models import write_tiny_base
from support.servers.s3_server import s3_server

pytestmark = [pytest.mark.chart, pytest.mark.timeout(1200)]
FACTS = ["a magnet attracts iron", "a nail is made of iron", "the sun is a star", "ice is solid water"]
TOKENS = {"token": "a-token", "admin-token": "an-admin-token", "redis-password": "a-password"}
LAB = "a-token-of-the-lab"


@pytest.fixture(params=SETS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """The pods of each set, healthy."""
    write_tiny_base(tmp_path / "base")
    digest = hashlib.sha256(LAB.encode()).hexdigest()
    tokens = {
        **TOKENS,
        "tokens.toml": f'[[credential]]\nname = "lab"\nrole = "read"\nhashes = [{{ sha256 = "{digest}" }}]\n',
    }
    secrets = {"aeenc-tokens": tokens, "my-oracle": {"token": "theirs"}}
    with ExitStack() as stack:
        if request.param == "production":
            secrets |= {"aeenc": tokens, **outside(stack, tmp_path)}
        extra = {"trainer": {"AEENC_TRAINER_BASE_MODEL": str(tmp_path / "base"), "AEENC_TRAINER_MAX_TOKENS": "64"}}
        pods = Cluster(tmp_path / "pods", rendered(request.param), secrets, extra)
        stack.callback(pods.kill)
        pods.start()
        pods.wait_healthy()
        yield pods


def outside(stack: ExitStack, home: Path) -> dict[str, dict[str, str]]:
    """The secrets of the Redis, the bucket and the certificates that a production has beside the chart."""
    server = start_private_redis(home / "redis")
    stack.callback(server.stop)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "of-production")
    _, bucket = stack.enter_context(s3_server(home / "s3"))
    certificate, key = (path.read_text() for path in certify(home, "services"))
    return {
        "aeenc-redis": {"url": server.url, "password": "of-production"},
        "aeenc-bucket": dict(bucket),
        "aeenc-tls": {"tls.crt": certificate, "tls.key": key, "ca.crt": certificate},
    }


def test_every_pod_answers_healthy_works_with_the_others_and_ends_in_time(cluster: Cluster):
    for one in cluster.workloads:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert cluster.answers(one, probe), (one.name, probe)
    names = ("encoder", "index", "sampler", "trainer")
    targets = {name: cluster.target(f"prod-aeenc-{name}:{50051 + n}") for n, name in enumerate(names)}
    ca = cluster.folder.parent / "services.pem" if cluster.has_tls else None
    with aeenc.connect(**targets, token="a-token", admin_token="an-admin-token", timeout_s=30, ca=ca) as client:
        client.index.build("facts", [types_pb2.Premise(id=f"f{n}", text=text) for n, text in enumerate(FACTS)])
        [hits] = client.index.retrieve("facts", ["a magnet attracts a nail"], k=3)
        assert {hit.text for hit in hits} < set(FACTS)
        assert {label.name for label in client.registry.list_labels()} == {"stable"}
        if "prod-aeenc-gold" in cluster.processes:
            run = client.sampler.start_run([("h", FACTS[0])], corpus="facts", oracle="gold", k=3)
            ended = client.sampler.wait(run.id)
            assert (ended.state, ended.progress.judgements) == (types_pb2.WORK_STATE_SUCCEEDED, 3), ended.error
    knows_the_lab = any("AEENC_INDEX_TOKENS_FILE" in one.variables for one in cluster.workloads)
    with aeenc.connect(**targets, token=LAB, timeout_s=10, ca=ca) as lab:
        if knows_the_lab:
            assert len(lab.index.retrieve("facts", ["x"], k=2)[0]) == 2
        else:
            with pytest.raises(errors.Unauthenticated):
                lab.index.retrieve("facts", ["x"])
    by_uvicorn = {f"prod-aeenc-{name}" for name in ("gateway", "workbench")}  # which ends by the signal once it is done
    for name, status in cluster.end().items():
        assert status == 0 or (name in by_uvicorn and status == -signal.SIGTERM), (name, status, cluster.log(name))
