"""Settings of the workbench: laptop defaults, from `AEENC_WORKBENCH_<FIELD>` and from flags, which win."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from aeenc.adapters.http import HttpSettings
from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.files.lines import json_file
from aeenc.transport.addresses import is_loopback
from aeenc.transport.checks import bare_token
from aeenc.transport.targets import home
from aeenc_workbench.oidc import Provider, roles_of
from aeenc_workbench.sign_in import Person


class WorkbenchSettings(HttpSettings):
    """Where the workbench listens, who may sign in, and where the services are."""

    model_config = SettingsConfigDict(env_prefix="AEENC_WORKBENCH_")
    program = "aeenc-workbench"

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
    trainer: str | None = Field(None, description="address of the trainer; default: AEENC_TRAINER or the local fleet")
    gold: Path | None = Field(None, description="folder of gold trees whose dev queries measure what is trained")
    token: Annotated[str, AfterValidator(bare_token)] | None = Field(
        None, description="its credential; default: AEENC_TOKEN, else the local fleet's"
    )
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
            fleet: Any = json_file(home() / "fleet.json")
            host, _, port = fleet["targets"]["workbench"].rpartition(":")
            if not is_loopback(host):  # a file of the working directory must lead nobody elsewhere
                return self
            socket.create_connection((host, int(port)), timeout=1).close()
        except (OSError, InvalidArgument, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return self  # no fleet, or one without a workbench
        return self.model_copy(update={"host": host, "port": int(port), "state_dir": home() / "state" / "workbench"})

    @property
    def people(self) -> list[Person]:
        """Those who get a link."""
        named = [Person(name) for name in self.annotator]
        named += [Person(name, "adjudicator") for name in self.adjudicator]
        named += [Person(name, "admin") for name in self.admin]
        return named or [Person(getpass.getuser(), "admin")]
