"""Named credentials: the file, the quotas, and what the gate makes of a header. Their RPCs: test_authorisation.py."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.test_authorisation import methods
from kit.test_server import Settings, build
from redis.exceptions import AuthenticationError

from aeenc import Channel, EncoderClient, errors
from aeenc.v1 import index_pb2, index_pb2_grpc
from services.index.settings import IndexSettings
from services.kit.credentials import credential_file
from services.kit.credentials.credential_file import Credential, HashedToken, hash_of, parse, render
from services.kit.credentials.gate import ANYBODY, Caller, Gate, TokenBucket
from services.kit.credentials.roles import NEEDED, Role, role_for
from services.kit.logs import name_call
from services.kit.settings import ServiceSettings
from services.sampler.settings import SamplerSettings
from services.store.redis import connect

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEARCH, LEASE = "/aeenc.v1.IndexService/Search", "/aeenc.v1.PeopleService/LeaseTask"


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s

    def wall(self) -> datetime:
        return NOW + timedelta(seconds=self.s)


def credential(name: str = "lab", *tokens: str | HashedToken, **fields: Any) -> Credential:
    hashes = [one if isinstance(one, HashedToken) else HashedToken(sha256=hash_of(one)) for one in tokens or (name,)]
    return Credential(**{"name": name, "role": "read", "hashes": hashes, **fields})


def write(path: Path, *credentials: Credential, text: str = "") -> Path:
    path.write_text("".join(map(render, credentials)) + text)
    return path


def gate(path: Path, clock: Clock, **fields: Any) -> Gate:
    return Gate(path=path, service="index", wall_clock=clock.wall, clock=clock, **fields)


def refusal(one: Gate, token: str, method: str = SEARCH) -> str:
    with pytest.raises(errors.AeencError) as raised:
        one.admit(method, f"Bearer {token}")
    return f"{raised.value.code}: {raised.value.message}"


# The file


names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z").filter(lambda name: name not in credential_file.RESERVED)
times = st.none() | st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 -- gets its zone next
    lambda at: at.replace(microsecond=0, tzinfo=UTC)
)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
rates = st.none() | st.floats(1e-3, 1e6)


@settings(max_examples=30)
@example("a", "read", ["\x7f"], "\x7f", None, None, None, None)  # TOML wants it escaped, JSON does not
@given(
    names,
    st.sampled_from([role.name.lower() for role in Role]),
    st.lists(texts, min_size=1, max_size=3),
    texts,
    rates,
    rates,
    times,
    times,
)
def test_what_is_written_reads_back_the_same(
    name: str, role: Any, corpora: Any, note: str, calls: Any, tokens: Any, expires: Any, until: Any
) -> None:
    hashes = [HashedToken(sha256=hash_of(name), until=until), HashedToken(sha256=hash_of(name + "2"), since=until)]
    written = Credential(
        name=name,
        role=role,
        services=("index",),
        corpora=tuple(corpora),
        note=note,
        calls_per_s=calls,
        tokens_per_s=tokens,
        expires=expires,
        hashes=hashes,
    )
    assert parse(render(written) + render(credential("another.one")), "here")[0] == written


WRONG = {
    "[[credential]": "is not TOML",
    f"a = {'[' * 5000}": "is not TOML",
    "[[credential]]\nname = 'a'\nrole = 'read'\nhashes = []": "credential.0.hashes",
    "[[credential]]\nname = 'a'\nrole = 'boss'\nhashes = [{sha256 = '0'}]": "credential.0.role",
    "[[credentials]]\nname = 'a'": "credentials",
    render(credential("a")).replace("role", "quota = 3\nrole"): "credential.0.quota",
    render(credential("a")).replace("role", "calls_per_s = 0\nrole"): "credential.0.calls_per_s",
    render(credential("a")).replace("role", "expires = 2026-01-01T00:00:00\nrole"): "credential.0.expires",
    render(credential("a")).replace("role", "expires = 0001-01-01T00:00:00+05:00\nrole"): "not in the years 1 to 9999",
    render(credential("a")).replace('"a"', '"admin-token"'): "names a token of the settings",
    render(credential("a")).replace("role", "services = []\nrole"): "credential.0.services.* is empty",
    render(credential("a")).replace("role", "corpora = []\nrole"): "credential.0.corpora.* is empty",
    render(credential("a")) * 2: "the name 'a' stands there twice",
    render(credential("a", "x")) + render(credential("b", "x")): "the hash",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_stops_the_start_with_its_path_and_field(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.toml", text=text)
    with pytest.raises(errors.InvalidArgument, match=WRONG[text]) as raised:
        build(tokens_file=path)
    assert str(path) in raised.value.message


@pytest.mark.parametrize("name", ["away.toml", f"{'x' * 300}.toml"])
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"\.toml cannot be read"):
        build(tokens_file=tmp_path / name)


# Roles


def test_every_rpc_of_the_services_stands_in_the_table_of_roles_and_no_other() -> None:
    rpcs = {name for name in methods() if "OracleService" not in name}
    assert set(NEEDED) == {f"/{one.rpartition('.')[0]}/{one.rpartition('.')[2]}" for one in rpcs}


def test_what_nobody_has_listed_needs_the_role_admin() -> None:
    assert role_for("/aeenc.v1.IndexService/Brew") is Role.ADMIN


# The gate


def test_a_credential_opens_its_services_from_its_first_moment_to_its_last(tmp_path: Path) -> None:
    clock, until = Clock(), NOW + timedelta(seconds=10)
    first = HashedToken(sha256=hash_of("first"), until=until)
    second = HashedToken(sha256=hash_of("second"), since=NOW + timedelta(seconds=5))
    lab = credential("lab", first, second, services=("index",), expires=NOW + timedelta(seconds=20))
    one = gate(write(tmp_path / "t", lab, credential("other", services=("encoder", "trainer"))), clock)
    assert one.admit(SEARCH, "Bearer first").name == "lab"
    assert refusal(one, "second").startswith("UNAUTHENTICATED: the token of 'lab' is valid from")
    clock.s = 7
    assert {one.admit(SEARCH, f"Bearer {token}").name for token in ("first", "second")} == {"lab"}
    clock.s = 10
    assert refusal(one, "first").startswith("UNAUTHENTICATED: the token of 'lab' expired at 2026")
    assert one.admit(SEARCH, "Bearer second").name == "lab"
    clock.s = 20
    assert refusal(one, "second").startswith("UNAUTHENTICATED: the token of 'lab' expired")
    assert refusal(one, "other").startswith("PERMISSION_DENIED: the index is not open to 'other', which has encoder")
    assert refusal(one, "unknown").startswith("UNAUTHENTICATED: an unknown token was sent")
    assert refusal(one, "").startswith("UNAUTHENTICATED: no token was sent")
    assert refusal(one, hash_of("second")).startswith("UNAUTHENTICATED"), "a hash opens nothing"


def test_a_file_closes_what_was_open_without_tokens_and_the_two_tokens_go_on(tmp_path: Path) -> None:
    clock, path = Clock(), write(tmp_path / "t", credential())
    assert Gate().admit(SEARCH, "") is ANYBODY
    for fields in ({}, {"admin_token": "admin"}):
        assert refusal(gate(path, clock, **fields), "").startswith("UNAUTHENTICATED")
    both = gate(path, clock, token="common", admin_token="admin")
    assert [both.admit(LEASE, f"Bearer {sent}").name for sent in ("common", "admin")] == ["token", "admin-token"]
    both.admin_services.add("aeenc.v1.IndexService")
    assert "PERMISSION_DENIED: /aeenc.v1.IndexService/Search needs the admin token" in refusal(both, "common")


def test_a_changed_file_is_used_and_a_wrong_one_leaves_the_last_good_one_and_says_so(tmp_path: Path) -> None:
    clock, path = Clock(), write(tmp_path / "t", credential("lab", "old"))
    one = gate(path, clock)
    assert not one.reload(), "nothing has changed"
    write(path, credential("lab", "old", "fresh"))
    assert one.reload()
    assert [one.admit(SEARCH, f"Bearer {token}").name for token in ("old", "fresh")] == ["lab", "lab"]
    write(path, text="[[credential]")
    with structlog.testing.capture_logs() as logs:
        assert not one.reload()
        assert not one.reload()
    assert [line["log_level"] for line in logs] == ["error"], "said once"
    assert "is not TOML" in one.problem
    assert one.admit(SEARCH, "Bearer fresh").name == "lab"
    path.unlink()
    with structlog.testing.capture_logs() as logs:
        assert not one.reload()
        assert not one.reload()
    assert len(logs) == 1, "said once"
    assert "cannot be read" in one.problem
    write(path, credential("lab", "fresh"))
    assert one.reload()
    assert one.problem == ""
    assert refusal(one, "old").startswith("UNAUTHENTICATED: an unknown")


def test_a_quota_that_stays_is_not_refilled_by_a_changed_file(tmp_path: Path) -> None:
    clock, path = Clock(), write(tmp_path / "t", credential(calls_per_s=1))
    one = gate(path, clock)
    for _ in range(5):
        one.admit(SEARCH, "lab")
    write(path, credential("lab", "lab", "fresh", calls_per_s=1))
    assert one.reload()
    assert "quota of 'lab' in calls" in refusal(one, "fresh")
    write(path, credential("lab", "lab", "fresh", calls_per_s=2))
    assert one.reload()
    assert one.admit(SEARCH, "fresh").name == "lab"


def test_a_corpus_outside_the_credentials_is_refused_and_so_is_none() -> None:
    lab = Caller("lab", Role.READ, frozenset({"science"}))
    lab.check_corpora(["science", "science"])
    lab.check_corpora([])
    ANYBODY.check_corpora(["arts"])
    for named in ("arts", ""):
        with pytest.raises(errors.PermissionDenied, match=f"corpus '{named}' is not open to 'lab', which has science"):
            lab.check_corpora(["science", named])


# Secrets


@pytest.mark.parametrize("value", ["", "  ", "\n"], ids=repr)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((Settings, name) for name in ("token", "admin_token", "peer_token", "peer_admin_token")),
        *((SamplerSettings, name) for name in ("redis_password", "redis_sentinel_password", "redis_url")),
        (IndexSettings, "milvus_token"),
    ],
    ids=lambda one: str(getattr(one, "__name__", one)),
)
def test_an_empty_secret_stops_the_start_with_the_name_of_its_setting(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[ServiceSettings],
    name: str,
    value: str,
) -> None:
    variable = f"{kind.model_config.get('env_prefix')}{name}".upper()
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match="2"):
        kind.from_command_line([])
    assert re.match(rf"{variable} \(--[a-z-]+\): .*is empty", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redis_url", "redis://:@redis:6379/0"),
        ("redis_url", "rediss+sentinel://ann:%20@a:1,b:2/master/0"),
        ("oracles", '{"team": {"target": "127.0.0.1:1"}, "mine": {"target": "127.0.0.1:1", "token": ""}}'),
        ("redis_password_file", "empty"),
    ],
)
def test_a_secret_inside_another_setting_is_not_empty_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, value: str
) -> None:
    (tmp_path / "empty").write_text(" \n")
    monkeypatch.setenv(f"AEENC_SAMPLER_{name.upper()}", str(tmp_path / value) if name.endswith("file") else value)
    with pytest.raises(SystemExit, match="2"):
        SamplerSettings.from_command_line([])
    said = capsys.readouterr().err
    assert re.match(rf"AEENC_SAMPLER_{name.upper()} .*(is|an) empty", said), said
    assert name != "oracles" or "mine.token" in said


def test_a_password_file_that_has_become_empty_opens_no_connection_without_a_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("something")
    redis = connect("redis://127.0.0.1:1/0", password_file=tmp_path / "password")
    provider = redis.connection_pool.connection_kwargs["credential_provider"]
    assert provider.get_credentials() == ("something",)
    (tmp_path / "password").write_text("\n")
    with pytest.raises(AuthenticationError, match="is empty"):
        provider.get_credentials()


@pytest.mark.parametrize("known", ["", " "])
@pytest.mark.parametrize("sent", ["", " ", "Bearer ", "Bearer  "])
def test_an_empty_token_is_no_token_for_the_gate(tmp_path: Path, known: str, sent: str) -> None:
    path = write(tmp_path / "t", credential("lab"))
    for tokens in ((known, None), ("s3cret", known), (known, known)):
        for file in (None, path):
            one = Gate(*tokens, path=file, service="trainer")
            one.admin_services.add("aeenc.v1.RegistryAdminService")
            for method in (SEARCH, "/aeenc.v1.RegistryAdminService/SetLabel"):
                with pytest.raises(errors.Unauthenticated, match="no token was sent"):
                    one.admit(method, sent)


def test_a_hash_of_nothing_is_no_credential() -> None:
    text = f'[[credential]]\nname = "a"\nrole = "read"\nhashes = [{{sha256 = "{hash_of("")}"}}]'
    with pytest.raises(errors.InvalidArgument, match="hash of nothing"):
        parse(text, "tokens.toml")


# Quotas


@given(st.floats(0.5, 1e4), st.floats(1, 1e3), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_a_bucket_never_gives_more_than_its_burst_and_its_rate(rate: float, burst: float, pauses: list[float]) -> None:
    clock = Clock()
    bucket, taken = TokenBucket(rate, burst, clock), 0
    for pause in pauses:
        clock.s += pause
        wait_s = bucket.take()
        taken += wait_s == 0
        assert taken <= burst + rate * clock.s + 1e-6
        if wait_s:
            clock.s += wait_s * (1 + 1e-9) + 1e-9
            assert bucket.take() == 0, "there is one after the time that was told"
            taken += 1


@given(st.floats(1, 1e5), st.lists(st.integers(0, 100_000), max_size=20))
def test_an_overdrawn_bucket_is_open_again_after_the_time_that_it_tells(rate: float, costs: list[int]) -> None:
    clock = Clock()
    bucket, spent = TokenBucket(rate, rate, clock), 0
    for cost in costs:
        clock.s += bucket.wait_s()
        assert bucket.wait_s() < 1e-6
        bucket.spend(cost)
        spent += cost
    assert spent <= rate * (1 + clock.s + bucket.wait_s()) * (1 + 1e-9) + 1e-3


def test_a_call_beyond_a_quota_is_told_when_to_come_back_and_what_tokens_have_cost_is_paid_first(
    tmp_path: Path,
) -> None:
    clock = Clock()
    one = gate(write(tmp_path / "t", credential(calls_per_s=100, tokens_per_s=1000)), clock)
    one.admit(SEARCH, "lab").spend(1500)
    with pytest.raises(errors.Overloaded, match="tokens a second") as raised:
        one.admit(SEARCH, "lab")
    assert raised.value.retry_after_s == pytest.approx(0.5, abs=0.02)
    clock.s += raised.value.retry_after_s
    for _ in range(25):
        one.admit(SEARCH, "lab")
    with pytest.raises(errors.Overloaded, match="calls a second") as raised:
        one.admit(SEARCH, "lab")
    assert raised.value.reason == "QUOTA_EXCEEDED"
    assert raised.value.retry_after_s == pytest.approx(0.01, abs=0.01)


# Messages and calls


def corpus_fields(message: Descriptor, seen: frozenset[str] = frozenset()) -> int:
    """How many fields `corpus` a message can hold, at any depth."""
    if message.full_name in seen:
        return 0
    inner = [field.message_type for field in message.fields if field.type == FieldDescriptor.TYPE_MESSAGE]
    here = sum(field.name == "corpus" for field in message.fields)
    return here + sum(corpus_fields(one, seen | {message.full_name}) for one in inner)


def test_every_corpus_that_a_request_can_name_is_found() -> None:
    def repeats(message: Descriptor) -> bool:
        return any(
            field.is_repeated and field.message_type and corpus_fields(field.message_type) for field in message.fields
        )

    requests = {method.input_type.full_name: method.input_type for method in methods().values()}
    assert sum(corpus_fields(one) > 0 for one in requests.values()) >= 14
    assert not [name for name, one in requests.items() if repeats(one)], "named_fields does not look into lists"


async def test_a_caller_stands_in_log_metrics_and_info_and_a_quota_reaches_them_with_the_time_to_wait(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "t", credential("ann", calls_per_s=0.001), credential("bob", role="admin"))
    server, _ = build(tokens_file=path)
    async with server:
        server.readiness.serving()

        def client(token: str) -> EncoderClient:
            return EncoderClient(Channel(f"127.0.0.1:{server.port}", timeout_s=5, retry=False, token=token))

        for _ in range(5):
            await client("ann").encode(["a"])
        with pytest.raises(errors.Overloaded, match="quota of 'ann'") as raised:
            await client("ann").encode(["a"])
        assert raised.value.retry_after_s == pytest.approx(1000, rel=0.01)
        with structlog.testing.capture_logs([name_call]) as logs, pytest.raises(errors.AeencError):
            await client("bob").encode(["bug"])
        assert [line["caller"] for line in logs if line["event"] == "call failed"] == ["bob"]
        counts = {
            (name, code): server.metrics.get_sample_value("aeenc_caller_calls_total", {"caller": name, "code": code})
            for name, code in (("ann", "OK"), ("ann", "RESOURCE_EXHAUSTED"), ("bob", "INTERNAL"))
        }
        assert counts == {("ann", "OK"): 5, ("ann", "RESOURCE_EXHAUSTED"): 1, ("bob", "INTERNAL"): 1}
        of_method = {"method": "/aeenc.v1.EncoderService/Encode", "code": "INTERNAL"}
        assert server.metrics.get_sample_value("aeenc_rpc_total", of_method) == 1
        assert server.metrics.get_sample_value("aeenc_tokens_file_in_force") == 1
        write(path, text="?")
        os.utime(path, (1, 1))
        server.gate.reload()
        assert server.metrics.get_sample_value("aeenc_tokens_file_in_force") == 0


class Index(index_pb2_grpc.IndexServiceServicer, index_pb2_grpc.IndexAdminServiceServicer):
    """Answers all that it is asked."""

    async def Search(self, request: Any, context: Any) -> Any:
        return index_pb2.SearchResponse()

    async def BuildGeneration(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            yield index_pb2.BuildGenerationResponse()

    async def PutExplanations(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            pass
        return index_pb2.PutExplanationsResponse()


async def test_corpora_hold_in_requests_and_streams_and_what_changes_something_is_in_the_audit_trail(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "t", credential("ann", role="admin", corpora=("science",)))
    server, servicer = build(tokens_file=path)[0], Index()
    server.add(index_pb2_grpc.add_IndexServiceServicer_to_server, servicer, "aeenc.v1.IndexService")
    server.add(index_pb2_grpc.add_IndexAdminServiceServicer_to_server, servicer, "aeenc.v1.IndexAdminService")
    ann = [("authorization", "Bearer ann")]
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        server.readiness.serving()
        reading, changing = index_pb2_grpc.IndexServiceStub(channel), index_pb2_grpc.IndexAdminServiceStub(channel)

        async def code(call: Any) -> str:
            try:
                if isinstance(call, grpc.aio.UnaryStreamCall | grpc.aio.StreamStreamCall):
                    _ = [answer async for answer in call]
                else:
                    await call
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
            return "OK"

        def build_of(corpus: str) -> Any:
            header = index_pb2.BuildGenerationRequest(header=index_pb2.BuildHeader(corpus=corpus))
            chunk = index_pb2.BuildGenerationRequest()
            return changing.BuildGeneration(iter([header, chunk]), metadata=ann)

        def explain(corpus: str) -> Any:
            header = index_pb2.PutExplanationsRequest(header=index_pb2.ExplanationsHeader(corpus=corpus))
            return changing.PutExplanations(iter([header]), metadata=ann)

        def search(corpus: str) -> Any:
            return reading.Search(index_pb2.SearchRequest(corpus=corpus), metadata=ann)

        with structlog.testing.capture_logs([name_call]) as logs:
            for corpus, wanted in (("science", "OK"), ("arts", "PERMISSION_DENIED"), ("", "PERMISSION_DENIED")):
                assert {await code(call(corpus)) for call in (search, build_of, explain)} == {wanted}
    trail = [
        (line["caller"], line["method"].rpartition("/")[2], line["code"], line.get("corpus"))
        for line in logs
        if line["event"] == "audit"
    ]
    assert sorted(trail, key=str) == sorted(
        [
            ("ann", rpc, code, corpus)
            for rpc in ("BuildGeneration", "PutExplanations")
            for code, corpus in (("OK", "science"), ("PERMISSION_DENIED", "arts"), ("PERMISSION_DENIED", None))
        ],
        key=str,
    )
