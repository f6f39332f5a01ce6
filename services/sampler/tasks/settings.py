"""Settings of a human queue: one entry of `AEENC_SAMPLER_QUEUES`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class QueueSettings(BaseModel):
    """One queue of people that runs may name as their oracle."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    # A worker asks this of every oracle: each node's answer is kept as soon as it is there.
    batch_tasks: ClassVar[int] = 1

    max_judgements: int = Field(0, ge=0, description="most verdicts asked in all runs together; 0: no limit")
    overlap: int = Field(1, ge=1, le=100, description="people who judge each task")
    policy: Literal["majority", "adjudicate"] = Field(
        "majority", description="when they differ: the greater number decides, or always an adjudicator"
    )
    undo_s: float = Field(10.0, ge=0, description="seconds in which an answer can be taken back before its run goes on")
    first_lease_s: float = Field(600.0, gt=0, le=3600, description="lease time before anybody has answered")
    min_lease_s: float = Field(60.0, gt=0, le=3600, description="shortest lease time; usually 3 times the mean answer")
    controls: Path | None = Field(None, description="control items with known answers (jsonl); none: none are mixed in")
    control_share: float = Field(0.1, ge=0, le=1, description="share of tasks that are control items, if there are any")
