"""Settings of the workbench: laptop defaults, from `AEENC_WORKBENCH_<FIELD>` and from flags, which win."""

from __future__ import annotations

import getpass
import json
import socket
import sys
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from aeenc.errors import FailedPrecondition
from aeenc.transport.addresses import is_loopback
from aeenc.transport.checks import bare_token
from aeenc.transport.targets import home
from aeenc_workbench.oidc import Provider, roles_of
from aeenc_workbench.sign_in import Person

PREFIX = "AEENC_WORKBENCH_"


class WorkbenchSettings(BaseSettings):
    """Where the workbench listens, who may sign in, and where the services are."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8700, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    annotator: list[str] = Field([], description="people to print a link for; none: your login, as admin")
    adjudicator: list[str] = Field([], description="people to print a link for who also decide conflicts")
    admin: list[str] = Field([], description="people to print a link for who also train and publish")
    print_links: bool = Field(True, description="print links at the start")
    link: bool = Field(
        False, description="print the links and end: for the workbench of `aeenc up`, else for one at --port"
    )
    sign_out_everybody: bool = Field(False, description="end the sessions of all people, and end; links stay valid")
    state_dir: Path | None = Field(None, description="folder of the key that signs sessions; default: .aeenc/workbench")
    url: str = Field("", description="address that people use, for the links; default: where it listens")
    sampler: str | None = Field(None, description="address of the sampler; default: AEENC_SAMPLER or the local fleet")
    index: str | None = Field(None, description="address of the index; default: AEENC_INDEX, else the local fleet")
    trainer: str | None = Field(None, description="address of the trainer; default: AEENC_TRAINER or the local fleet")
    gold: Path | None = Field(None, description="folder of gold trees whose dev queries measure what is trained")
    token: Annotated[str, AfterValidator(bare_token)] | None = Field(
        None, description="its credential; default: AEENC_TOKEN, else the local fleet's"
    )
    ca: Path | None = Field(None, description="CA (PEM) of the services; default: AEENC_CA; none: plain, or AEENC_TLS")
    cert: Path | None = Field(
        None, description="client certificate (PEM) that the services ask for; default: AEENC_CERT"
    )
    key: Path | None = Field(None, description="private key (PEM) of `cert`; default: AEENC_KEY")
    plain_token: bool = Field(
        False, description="send `token` to services on another host without `ca`, too: in a network that you trust"
    )
    tls_cert: Path | None = Field(None, description="certificate chain (PEM) of the workbench")
    tls_key: Path | None = Field(None, description="private key (PEM) of the workbench")
    oidc_issuer: str = Field("", description="OpenID provider by which people sign in, too; none: links alone")
    oidc_client_id: str = Field("", description="the workbench's id at the provider")
    oidc_client_secret_file: Path | None = Field(None, description="file with its secret at the provider")
    oidc_role: list[str] = Field([], description="VALUE=ROLE: who has VALUE in the roles claim is annotator, … admin")
    oidc_roles_claim: str = Field(
        "roles", description="claim that names people's roles; dots lead into one: realm_access.roles"
    )
    oidc_name_claim: str = Field("preferred_username", description="claim that names a person")
    oidc_session_s: int = Field(8 * 3600, ge=60, description="seconds after which people sign in anew, with new roles")
    allow_insecure: bool = Field(False, description="listen beyond loopback without TLS, as behind a proxy that has it")

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; give both or neither")
        if self.tls_cert is None and not self.allow_insecure and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} is not loopback: sessions would travel in the clear; give tls_cert and tls_key, or set "
                "allow_insecure behind a proxy that has TLS"
            )
        return self

    @model_validator(mode="after")
    def _names_a_provider(self) -> Self:
        if self.oidc_issuer and not (self.oidc_client_id and self.oidc_client_secret_file and self.url):
            raise ValueError("oidc_issuer needs oidc_client_id, oidc_client_secret_file and url")
        roles_of(self.oidc_role)
        return self

    @property
    def provider(self) -> Provider | None:
        """The OpenID provider."""
        if not self.oidc_issuer or self.oidc_client_secret_file is None:
            return None
        secret = self.oidc_client_secret_file.read_text(encoding="utf-8").strip()
        if not secret:
            raise FailedPrecondition(f"{self.oidc_client_secret_file} is empty; write the workbench's secret into it")
        return Provider(
            issuer=self.oidc_issuer,
            client_id=self.oidc_client_id,
            client_secret=secret,
            url=self.url,
            roles=roles_of(self.oidc_role),
            roles_claim=self.oidc_roles_claim,
            name_claim=self.oidc_name_claim,
        )

    @property
    def folder(self) -> Path:
        """Where the key is."""
        return self.state_dir or home() / "workbench"

    def of_fleet(self) -> Self:
        """These settings with port and folder of the workbench that `aeenc up` has started, while it answers.

        Unchanged where host, port or folder are given. Nothing else tells which workbench a new link is for.
        """
        if self.model_fields_set & {"host", "port", "state_dir"}:
            return self
        try:
            fleet = json.loads((home() / "fleet.json").read_text(encoding="utf-8"))
            host, _, port = fleet["targets"]["workbench"].rpartition(":")
            if not is_loopback(host):  # a file of the working directory must lead nobody elsewhere
                return self
            socket.create_connection((host, int(port)), timeout=1).close()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no fleet, or one without a workbench
            return self
        return self.model_copy(update={"host": host, "port": int(port), "state_dir": home() / "state" / "workbench"})

    @property
    def people(self) -> list[Person]:
        """Those who get a link."""
        named = [Person(name) for name in self.annotator]
        named += [Person(name, "adjudicator") for name in self.adjudicator]
        named += [Person(name, "admin") for name in self.admin]
        return named or [Person(getpass.getuser(), "admin")]

    @classmethod
    def from_command_line(cls, arguments: list[str] | None = None) -> Self:
        """Reads flags (`--port 8700`) and the environment. A wrong value ends the process: its name, status 2."""
        flags: CliSettingsSource[Any] = CliSettingsSource(
            cls,
            cli_prog_name="aeenc-workbench",
            cli_parse_args=sys.argv[1:] if arguments is None else arguments,
            cli_kebab_case=True,
            cli_implicit_flags=True,
        )
        try:
            return cls(_cli_settings_source=flags)  # type: ignore[call-arg]
        except ValidationError as error:
            for problem in error.errors():
                name = str(problem["loc"][0]) if problem["loc"] else ""
                setting = f"{PREFIX}{name.upper()} (--{name.replace('_', '-')})" if name else "aeenc-workbench"
                sys.stderr.write(f"{setting}: {problem['msg']}\n")
            raise SystemExit(2) from None
