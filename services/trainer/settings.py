"""Settings of the trainer: `AEENC_TRAINER_<FIELD>` and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints
from pydantic_settings import SettingsConfigDict

from services.kit.settings import RedisSettings, usable_cores
from services.trainer.models.base_model import DEFAULT_NAME

NonEmpty = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class TrainerSettings(RedisSettings):
    """The trainer's settings beside those of every service."""

    model_config = SettingsConfigDict(env_prefix="AEENC_TRAINER_")
    service: ClassVar[str] = "trainer"

    port: int = Field(50054, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    state_dir: Path = Field(Path(".aeenc/state/trainer"), description="where jobs keep what they need to be resumed")
    tensorboard_dir: str = Field(
        "", description="where each job leaves its curves as TensorBoard events; empty: nowhere"
    )
    encoder_target: str = Field("127.0.0.1:50051", description="the encoder, for evaluations")
    index_target: str = Field(
        "127.0.0.1:50052", description="the index, for evaluations and for generations of trained premises"
    )
    sampler_target: str = Field("127.0.0.1:50053", description="the sampler, for the pairs of runs")
    base_model: str = Field(DEFAULT_NAME, description="the pre-trained encoder: its name, a directory or a hub id")
    base_model_sha256: str = Field(
        "",
        pattern="^([0-9a-fA-F]{64})?$",
        description="what the SHA-256 of its model.safetensors must be, or the trainer does not start; empty: "
        "unchecked, but for the default model",
    )
    cross_encoder: str = Field("", description="the model that scores pairs: a directory or a hub id; empty: none")
    pooling: Literal["", "mean", "cls", "max"] = Field(
        "",
        description="how the base model's token vectors become one; empty: as its directory says, else mean (DPR: cls)",
    )
    max_tokens: int = Field(256, ge=8, description="longest text that the base model sees, in tokens")
    query_prefix: str = Field("", description="put before every query, where the base model wants one")
    premise_prefix: str = Field("", description="put before every premise, where the base model wants one")
    premise_precision: Literal["float32", "int8"] = Field(
        "float32",
        description="how exactly the base model encodes premises; int8: faster on a CPU, in a space of its own, which "
        "the torch runtime cannot serve",
    )
    base_precision: Literal["float32", "float16", "int8"] = Field(
        "float32",
        description="how exactly encoders compute queries by the base model until another version is published: "
        "float16 where all of them have a GPU, int8 where its premises have it",
    )
    data_sets: dict[str, Path] = Field(
        default_factory=dict,
        description="data sets by the name that jobs use: directories of trees or of rated facts, JSON lines; "
        "nli:PATH for inferences whose premise is the query, analogy:PATH for answer selection",
    )
    losses: dict[str, NonEmpty] = Field(
        default_factory=dict,
        description="losses of your own by the name that jobs use: MODULE.FUNCTION of pairs, or "
        "triplets:MODULE.FUNCTION and others, which the trainer's Python can import",
    )
    base_models: dict[str, NonEmpty] = Field(
        default_factory=dict,
        description="further models by the name that jobs use, from which cross-encoders can start: directories or "
        "hub ids",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where jobs compute; auto: on a GPU where there is one"
    )
    gpu_bytes: int = Field(
        0, ge=0, description="most memory of the GPU that each process of a job takes, in bytes; 0: no limit"
    )
    threads: int = Field(usable_cores(), ge=1, description="threads of a job on the CPU, all its processes together")
    processes: int = Field(1, ge=1, le=64, description="processes of a job: as many as GPUs it is to use")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="what jobs multiply in; auto: bfloat16 on a CPU with instructions for it, else float32"
    )
    int8: bool = Field(True, description="whether jobs also export int8, where it passes the quality gate")
    fp16: bool = Field(False, description="whether exports also hold fp16, which encoders on a GPU serve")
    lease_s: float = Field(
        10.0, ge=0.1, description="seconds after which another trainer takes over a silent one's job"
    )
    job_keep_s: float = Field(0.0, ge=0, description="seconds that ended jobs are kept; 0: for ever")
    jobs_kept: int = Field(0, ge=0, description="ended jobs that are kept, those that ended last; 0: all")
    checkpoint_keep_s: float = Field(
        0.0, ge=0, description="seconds that checkpoints are kept which nothing names; 0: for ever"
    )
    checkpoints_kept: int = Field(
        0, ge=0, description="how many of the newest checkpoints to keep; older ones in use are kept, too; 0: all"
    )
    grace_s: float = Field(
        600.0, ge=0, description="seconds from the deletion of a checkpoint to the removal of its files"
    )
    poll_s: float = Field(0.5, gt=0, description="seconds between looks for waiting jobs and at a job's progress")
