"""Settings of the encoder: `AEENC_ENCODER_<FIELD>` and flags."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from services.kit.settings import RedisSettings

LEAST_QUEUED_TOKENS = 1024


class EncoderSettings(RedisSettings):
    """The encoder's own settings beside those of every service."""

    model_config = SettingsConfigDict(env_prefix="AEENC_ENCODER_")
    service: ClassVar[str] = "encoder"

    port: int = Field(50051, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    state_dir: Path = Field(Path(".aeenc/state/encoder"), description="where the last labels are kept")
    space_id: str = Field(
        "", description="the one space to serve; empty: the registry's default and every other with a label"
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        description="where models run: `auto` (CUDA where it works), `cpu`, `cuda`, or `cuda:N`, that card",
    )
    gpu_bytes: int = Field(
        0,
        ge=0,
        description="most memory of the GPU that this encoder takes (onnxruntime: a model file), in bytes; 0: any",
    )
    runtime: Literal["onnxruntime", "torch"] = Field(
        "onnxruntime", description="what computes encoders; torch needs the extra encoder-torch"
    )
    workers: int = Field(
        0,
        ge=0,
        description="threads that compute, one session call each; 0: as many as cores, or 2 where a GPU computes both "
        "encoders and cross-encoders",
    )
    batch_items: int = Field(
        0, ge=0, description="most texts in one batch; 0: 32 on a CPU, as many as batch_tokens allows on a GPU"
    )
    batch_tokens: int = Field(0, ge=0, description="most padded tokens in one batch; 0: 256 on a CPU, 32768 on a GPU")
    queued_tokens: int = Field(
        0,
        ge=0,
        description="most tokens admitted at once, a quarter of them bulk; 0: 32768 on a CPU, 1048576 on a GPU",
    )
    stuck_s: float = Field(60.0, gt=0, description="how long one batch may take before its worker is replaced")
    poll_s: float = Field(30.0, gt=0, description="how often labels are read again without an event")
    load_s: float = Field(120.0, gt=0, description="how long loading one checkpoint may take")
    loaded_bytes: int = Field(
        0, ge=0, description="most bytes of model files loaded at once; 0: half of the machine's or container's memory"
    )
    model_bytes: int = Field(4 * 1024**3, ge=1024, description="largest checkpoint file accepted, in bytes")

    @field_validator("queued_tokens")
    @classmethod
    def _holds_a_text(cls, value: int) -> int:
        if 0 < value < LEAST_QUEUED_TOKENS:
            raise ValueError(f"must be 0 or at least {LEAST_QUEUED_TOKENS}")
        return value
