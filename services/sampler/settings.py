"""Settings of the sampler: `AEENC_SAMPLER_<FIELD>` or flags. Oracles are named here; no call carries an address."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FilePath, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from aeenc import errors
from aeenc.files.lines import text_lines
from services.kit.credentials.gate import person_name
from services.kit.settings import RedisSettings, Token

MAX_GUIDELINE = 65_536  # characters


class OracleSettings(BaseModel):
    """One oracle that runs may name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Workers read this of every oracle; 0 means `wave_nodes`.
    open_tasks: ClassVar[int] = 0

    target: str = Field(description="where it listens: host:port, unix:path or dns:///name:port")
    token: Token | None = Field(None, description="bearer token that it expects")
    ca: FilePath | None = Field(None, description="CA (PEM) of its certificate; none: a plain connection")
    cert: FilePath | None = Field(None, description="client certificate (PEM) that it expects; with `key` and `ca`")
    key: FilePath | None = Field(None, description="private key (PEM) of `cert`")
    plain_token: bool = Field(
        False, description="send `token` to another host without `ca`, too: in a network that you trust"
    )
    timeout_s: float = Field(30.0, gt=0, description="seconds that one call may take")
    max_concurrency: int = Field(4, ge=1, le=256, description="calls in flight at once")
    batch_tasks: int = Field(16, ge=1, le=1024, description="most nodes put into one call")
    max_judgements: int = Field(0, ge=0, description="most verdicts asked in all runs together; 0: no limit")
    max_attempts: int = Field(5, ge=1, le=100, description="tries before a call counts as failed")
    backoff_s: float = Field(0.2, gt=0, description="pause after the first failure; doubles, at most 5 s")
    breaker_failures: int = Field(5, ge=1, description="failed calls in a row after which one at a time tries")
    patience_s: float = Field(
        300.0, ge=0, description="seconds that runs wait for it when it fails; 10 at most before its first answer"
    )


class QueueSettings(BaseModel):
    """One queue of people that runs may name as their oracle."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # A worker asks this of every oracle: each node's answer is kept as soon as it is there.
    batch_tasks: ClassVar[int] = 1

    max_judgements: int = Field(0, ge=0, description="most verdicts asked in all runs together; 0: no limit")
    overlap: int = Field(
        1, ge=1, le=100, description="people who judge each task; a lower one holds for waiting tasks, too"
    )
    policy: Literal["majority", "adjudicate"] = Field(
        "majority", description="when they differ: the greater number decides, or always an adjudicator"
    )
    open_tasks: int = Field(
        1024, ge=1, le=4096, description="most nodes of a run in work at once, a task each; answers make room for more"
    )
    undo_s: float = Field(10.0, ge=0, description="seconds in which an answer can be taken back before its run goes on")
    first_lease_s: float = Field(600.0, gt=0, le=3600, description="lease time before anybody has answered")
    min_lease_s: float = Field(60.0, gt=0, le=3600, description="shortest lease time; usually 3 times the mean answer")
    controls: FilePath | None = Field(None, description="control items with known answers (jsonl); none: no items")
    guideline: FilePath | None = Field(
        None, description="text for the people of the queue (Markdown, at most 65,536 characters); none: no text"
    )
    max_grade: float = Field(
        0.0, ge=0, le=100, description="highest grade that people give to what explains, from 1; 0: none is asked for"
    )
    control_share: float = Field(0.1, ge=0, le=1, description="share of tasks that are control items, if there are any")
    qualify: int = Field(0, ge=0, description="control items that each person answers before any other task; 0: none")
    qualify_share: float = Field(
        0.8, ge=0, le=1, description="share of their verdicts on these that must be right before they get other tasks"
    )
    qualified: frozenset[str] = Field(frozenset(), description="people who get tasks without having qualified")

    @field_validator("qualified", mode="after")
    @classmethod
    def _kept_names(cls, named: frozenset[str]) -> frozenset[str]:
        return frozenset(map(person_name, named))

    def guideline_text(self) -> str:
        """The text for the people of the queue. Raises InvalidArgument for one that is too long or not UTF-8."""
        if self.guideline is None:
            return ""
        text = "\n".join(line.rstrip("\r\n") for _, line in text_lines(self.guideline))
        if len(text) > MAX_GUIDELINE:
            raise errors.InvalidArgument(f"{self.guideline} has {len(text):,} characters; at most {MAX_GUIDELINE:,}")
        return text


class SamplerSettings(RedisSettings):
    """Settings of one sampler process."""

    model_config = SettingsConfigDict(env_prefix="AEENC_SAMPLER_")
    service: ClassVar[str] = "sampler"

    port: int = Field(50053, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    index_target: str = Field("127.0.0.1:50052", description="the index")
    trainer_target: str | None = Field(
        None, description="the trainer's registry, told to keep each run's encoder version loaded; none: not told"
    )
    oracles: dict[str, OracleSettings] = Field(default_factory=dict, description="oracles by the name that runs use")
    queues: dict[str, QueueSettings] = Field(
        default_factory=dict, description="queues of people who judge, by the name that runs use as their oracle"
    )
    wave_nodes: int = Field(
        256, ge=1, le=1024, description="most nodes of a run in work at once; of a queue: `open_tasks`"
    )
    max_active_runs: int = Field(4, ge=1, description="runs worked on at once, but for those of queues; others wait")
    max_people_runs: int = Field(64, ge=1, description="runs of queues worked on at once; others wait")
    max_hypotheses: int = Field(100_000, ge=1, description="most hypotheses of one run")
    lease_s: float = Field(
        10.0, ge=0.1, description="seconds after which another sampler takes over a silent one's run"
    )
    poll_s: float = Field(0.5, gt=0, description="seconds between looks for runs that wait for a sampler")
    index_patience_s: float = Field(300.0, ge=0, description="seconds that a run waits for an index that is away")
    run_keep_s: float = Field(0.0, ge=0, description="seconds after its end that a run is kept; 0: for ever")
    runs_kept: int = Field(0, ge=0, description="ended runs that are kept, those that ended last; 0: all")

    @field_validator("queues", mode="after")
    @classmethod
    def _other_names(cls, queues: dict[str, QueueSettings], known: ValidationInfo) -> dict[str, QueueSettings]:
        if twice := sorted(queues.keys() & known.data.get("oracles", {}).keys()):
            raise ValueError(f"{twice} name oracles, too; give the queues other names")
        return queues
