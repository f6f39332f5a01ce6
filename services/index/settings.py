"""Settings of the index: `AEENC_INDEX_<FIELD>` and flags. It needs no Redis; an encoder only for texts and builds."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from aeenc.errors import InvalidArgument
from aeenc.transport.addresses import split
from services.index.values import BuildOptions, EngineOptions, LexicalSettings
from services.kit.limits import Limits
from services.kit.settings import Secret, ServiceSettings, usable_cores


class IndexSettings(ServiceSettings):
    """Settings of the index."""

    model_config = SettingsConfigDict(
        env_prefix="AEENC_INDEX_",
        extra="forbid",
        frozen=True,
        env_nested_delimiter="__",
        cli_prog_name="services.index",
    )
    service: ClassVar[str] = "index"

    port: int = Field(50052, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    encoder_target: str = Field(
        "127.0.0.1:50051",
        description="the encoders, for Retrieve and for builds: host:port,host:port or dns:///name:port",
    )
    serving_processes: int = Field(
        1, ge=1, le=64, description="processes that serve on the port, each with the other limits for itself"
    )
    k_max: int = Field(1000, ge=1, le=10_000, description="largest k of a search")
    max_queued: int = Field(4096, ge=1, description="most query vectors waiting before calls are refused")
    encode_timeout_s: float = Field(10.0, gt=0, description="most seconds that Retrieve waits for the encoder")
    build_encode_timeout_s: float = Field(
        120.0,
        gt=0,
        description="seconds without an answer after which a build fails, or half its caller's time",
    )
    build_batch: int = Field(128, ge=1, le=240, description="texts in one batch of a build")
    build_window: int = Field(4, ge=1, le=64, description="batches that a build has at each encoder at once")
    engine: Literal["auto", "flat", "ivf", "hnsw"] = Field(
        "auto", description="search engine of new generations; auto: flat up to FLAT_PREMISES, ivf beyond"
    )
    flat_premises: int = Field(EngineOptions.flat_premises, ge=1, description="premises up to which auto is exact")
    recall: float = Field(
        0.99,
        ge=0.5,
        le=1.0,
        description="share of the true ten nearest that ivf and hnsw must find when they are built",
    )
    storage: Literal["float32", "float16"] = Field(
        "float32",
        description="how new generations keep vectors; float16 halves them and rounds cosines by less than 1e-4",
    )
    device: str = Field(
        "cpu",
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        description="where exact engines search: `cpu`; `auto` (a GPU where one works and has room, else the CPU); "
        "`cuda`, or `cuda:N`, that card. A GPU needs the extra `index-gpu`",
    )
    gpu_bytes: int = Field(
        0,
        ge=0,
        description="most bytes of the GPU for premises and 1 GiB to work in, as the index counts them; 0: no limit",
    )
    build_threads: int = Field(
        usable_cores(), ge=1, description="threads that build ivf and hnsw, in a process of its own"
    )
    bm25_k1: float = Field(1.5, ge=0, le=10, description="BM25's k1 in new generations")
    bm25_b: float = Field(0.75, ge=0, le=1, description="BM25's b in new generations")
    bm25_words: Literal["stems", "lemmas", "words"] = Field(
        "stems",
        description="what new generations rank by; stems and lemmas are English, lemmas need the extra `index-lemmas`",
    )
    iterative_first_scale: float = Field(
        1.25, ge=1, le=100, description="of iterative BM25: divides the weights of the first round's words"
    )
    iterative_downscale: float = Field(
        1.25, ge=1, le=100, description="of iterative BM25: divides them by so much more in each further round"
    )
    iterative_growth: float = Field(
        2.0, ge=1.1, le=100, description="of iterative BM25: how many times as many premises each round takes"
    )
    build_sync_s: float = Field(
        1.0, gt=0, description="seconds after which a build with a request_id puts what is new on the disk"
    )
    build_keep_s: float = Field(
        24 * 3600.0, gt=0, description="seconds for which an unfinished build waits for its caller to come again"
    )
    request_keep_s: float = Field(
        7 * 24 * 3600.0,
        gt=0,
        description="seconds for which the retry of a build with the same request_id gets the same answer",
    )
    pinned_generations: int = Field(4, ge=1, description="generations kept open besides the active ones")
    pinned_bytes: int = Field(
        8 * 1024**3, ge=1, description="size of all generations kept open besides the active ones; one may be larger"
    )
    look_s: float = Field(
        0.5, gt=0, description="seconds between two looks at what other index processes have done to the store"
    )
    replica_lease_s: float = Field(
        10.0, gt=0, description="seconds of silence after which another index process no longer counts as alive"
    )
    replica_wait_s: float = Field(
        5.0, ge=0, description="most seconds that an activation waits for all live index processes to serve it"
    )

    backend: Literal["faiss", "milvus"] = Field(
        "faiss", description="what searches new generations: this process, or a Milvus (extra `index-milvus`)"
    )
    milvus_uri: str = Field("", description="the Milvus: http://host:port, or a path that milvus-lite opens")
    milvus_token: Secret | None = Field(None, description="`user:password` or API key for Milvus")
    milvus_database: str = Field("", description="database in Milvus; empty: its default")
    milvus_prefix: str = Field(
        "aeenc", pattern="^[A-Za-z_][A-Za-z0-9_]{0,31}$", description="what names of collections in Milvus start with"
    )
    milvus_engine: Literal["auto", "flat", "hnsw"] = Field(
        "auto", description="index in Milvus: exact, approximate, or exact up to FLAT_PREMISES"
    )
    milvus_timeout_s: float = Field(10.0, gt=0, description="most seconds that one call of Milvus may take")
    milvus_patience_s: float = Field(
        3600.0, gt=0, description="most seconds that Milvus may index and load a generation"
    )
    milvus_threads: int = Field(16, ge=1, le=256, description="searches at Milvus at once")
    milvus_refresh_s: float = Field(2.0, gt=0, description="seconds between two looks whether Milvus answers")
    milvus_lease_s: float = Field(
        60.0, gt=0, description="seconds that a collection stays in Milvus once nobody reads its deleted generation"
    )

    @field_validator("encoder_target", mode="after")
    @classmethod
    def _check_target(cls, value: str, info: ValidationInfo) -> str:
        try:
            split(value, tls=info.data.get("peer_ca") is not None)
        except InvalidArgument as error:
            raise ValueError(error.message) from None
        return value

    @model_validator(mode="after")
    def _check_backend(self) -> Self:
        if self.backend == "milvus" and not self.milvus_uri:
            raise ValueError("AEENC_INDEX_BACKEND=milvus needs AEENC_INDEX_MILVUS_URI; name the Milvus")
        if self.serving_processes > 1 and self.backend == "milvus":
            raise ValueError(
                "AEENC_INDEX_SERVING_PROCESSES is for the backend faiss; start several indexes before a Milvus"
            )
        if self.serving_processes > 1 and self.host.startswith("unix:"):
            raise ValueError(
                f"AEENC_INDEX_SERVING_PROCESSES is {self.serving_processes}, and they cannot share {self.host}; give "
                "AEENC_INDEX_HOST an IP"
            )
        if self.device != "cpu" and self.worker_processes > 1:
            raise ValueError(
                f"AEENC_INDEX_DEVICE={self.device} is for one serving process, whose callers share the card; "
                "set AEENC_INDEX_SERVING_PROCESSES=1"
            )
        if self.bm25_words == "lemmas" and find_spec("simplemma") is None:
            raise ValueError("AEENC_INDEX_BM25_WORDS=lemmas needs simplemma; install the extra index-lemmas")
        return self

    @property
    def worker_processes(self) -> int:
        """How many processes serve on the port."""
        return self.serving_processes

    @property
    def engines(self) -> EngineOptions:
        """The search engines of new generations."""
        milvus = self.milvus_engine if self.backend == "milvus" else None
        lexical = LexicalSettings(
            self.bm25_k1,
            self.bm25_b,
            self.bm25_words,
            self.iterative_first_scale,
            self.iterative_downscale,
            self.iterative_growth,
        )
        return EngineOptions(
            self.engine, self.flat_premises, self.storage, self.recall, self.build_threads, milvus, lexical
        )

    @property
    def builds(self) -> BuildOptions:
        """How builds use the encoders, the disk and the engines."""
        return BuildOptions(
            self.build_batch,
            self.build_window,
            self.build_encode_timeout_s,
            self.build_sync_s,
            self.build_keep_s,
            self.engines,
            self.request_keep_s,
        )

    @property
    def limits(self) -> Limits:
        """The limits that the index enforces and states in GetInfo."""
        return Limits(
            message_bytes=self.message_bytes,
            items=self.max_items,
            text_bytes=self.text_bytes,
            k=self.k_max,
            queued_items=self.max_queued,
        )
