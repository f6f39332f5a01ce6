"""The encoder with the interface of `sentence_transformers.SentenceTransformer`, for code that calls `encode`.

Only what makes sense for a model that runs elsewhere; everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from aeenc.adapters.premises import ConnectsLater
from aeenc.calls.encoding import Role
from aeenc.calls.inputs import at_least_one, listed
from aeenc.encoder import EncoderClient
from aeenc.errors import InvalidArgument
from aeenc.transport.sync import run
from aeenc.transport.targets import ConnectOptions, Targets
from aeenc.values.writing import shown

BATCH = 32
ROLES: dict[str, Role] = {"query": "query", "premise": "premise", "document": "premise", "passage": "premise"}
# argument -> the values that change nothing, and the reason why others are refused
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "chunk_size": ((None,), "there is no pool of processes; batch_size cuts the texts"),
    "convert_to_numpy": ((None, True), "the vectors are rows of one numpy array; list(…) makes a list of them"),
    "convert_to_tensor": ((None, False), "the vectors are numpy arrays; torch.from_numpy makes a tensor of one"),
    "device": ((None,), "the encoder service computes; its settings choose the device"),
    "output_value": ((None, "sentence_embedding"), "the encoder answers with sentence embeddings alone"),
    "pool": ((None,), "the encoder service spreads the work; give several addresses or a DNS name"),
    "precision": ((None, "float32"), "the vectors are not quantized here"),
    "prompt": ((None, ""), "a checkpoint has prefixes of its own; give prompt_name 'query' or 'document'"),
    "show_progress_bar": ((None, False, True), "there is none"),  # notebooks ask for it; its absence changes nothing
    "truncate_dim": ((None,), "the index knows vectors of full length alone"),
}


class AeencEncoder(ConnectsLater[EncoderClient]):
    """Encodes sentences by the encoder service. It blocks; in an event loop, await `EncoderClient.encode` instead.

    `role` is that of texts without a `prompt_name`: "query" or "premise". `label` or `version` names the query encoder
    (default: label `stable`, whose version may change between calls; `version` pins it). Texts too long for the model
    are cut, as sentence-transformers does, unless `truncate` is False. `encoder` ("host:port"), the
    credentials and `timeout_s`, which limits a call of at most `batch_size` sentences, are found as those of
    `aeenc.connect`.
    """

    _service, _kind = "encoder", EncoderClient

    def __init__(
        self,
        *,
        role: Role = "query",
        label: str | None = None,
        version: str | None = None,
        space_id: str = "",
        truncate: bool = True,
        **place: Unpack[ConnectOptions],
    ) -> None:
        self._targets = Targets.find(**place)
        self._role = role_of(role, "role")
        self._model = {"label": label, "version": version}
        self._space_id, self._truncate = space_id, truncate

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        *,
        batch_size: int = BATCH,
        normalize_embeddings: bool = True,
        **options: Any,
    ) -> NDArray[np.float32]:
        """Embeds sentences: (n, dim) float32, or (dim,) for one string; rows of unit length.

        `prompt_name` is the role: "query", or "document" (also "passage", "premise") for texts that are searched. More
        than `batch_size` sentences go as a stream in the bulk lane. `normalize_embeddings` changes nothing: the
        encoder's vectors have unit length either way. Other options of sentence-transformers raise InvalidArgument with
        the reason, unless their value changes nothing.
        """
        del normalize_embeddings
        refuse(options)
        role = role_of(prompt_name) if prompt_name is not None else self._role
        at_least_one(batch_size, "batch_size")
        if isinstance(sentences, str):
            return cast("NDArray[np.float32]", run(self._encode([sentences], role, batch_size))[0])
        return run(self._encode(_strings(sentences), role, batch_size))

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Embeds queries; otherwise as `encode`."""
        return self.encode(sentences, **{"prompt_name": "query", **options})

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Embeds texts that are searched; otherwise as `encode`."""
        return self.encode(sentences, **{"prompt_name": "document", **options})

    def similarity(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the cosines of `first` (n, dim) with `second` (m, dim) as (n, m); either may be one row."""
        one, other = (np.atleast_2d(np.asarray(rows, dtype=np.float32)) for rows in (first, second))
        norms = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
        return cast("NDArray[np.float32]", one @ other.T / np.maximum(norms, np.finfo(np.float32).tiny))

    def get_sentence_embedding_dimension(self) -> int:
        """Asks the encoder for the number of values of a vector."""
        return run(self._dim())

    async def _encode(self, texts: list[str], role: Role, batch: int) -> NDArray[np.float32]:
        """Runs on the loop of the blocking clients, to which the channel belongs."""
        if not texts:
            return np.zeros((0, await self._dim()), dtype=np.float32)
        client, model = self._connected(), self._model if role == "query" else {}
        options: Any = {"role": role, "space_id": self._space_id, "truncate": self._truncate, **model}
        if len(texts) <= batch:
            return (await client.encode(texts, **options)).vectors
        return np.concatenate([answer.vectors async for answer in client.encode_all(texts, batch=batch, **options)])

    async def _dim(self) -> int:
        return int((await self._connected().info()).dim)


def role_of(name: Any, parameter: str = "prompt_name") -> Role:
    """Returns the role that a name stands for. Raises InvalidArgument, by the parameter, for an unknown one."""
    if not isinstance(name, str) or name not in ROLES:
        raise InvalidArgument.field(parameter, f"is {shown(name)}; give one of {', '.join(ROLES)}")
    return ROLES[name]


def refuse(options: dict[str, Any]) -> None:
    """Raises InvalidArgument for an option of sentence-transformers that cannot be kept, or that is unknown."""
    for name, value in options.items():
        if name not in _REFUSED:
            raise InvalidArgument.field(name, "is not an option of AeencEncoder.encode")
        harmless, why = _REFUSED[name]
        if not any(isinstance(value, type(one)) and value == one for one in harmless):
            raise InvalidArgument.field(name, f"is {value!r:.60}, which AeencEncoder cannot do: {why}")


def _strings(sentences: Sequence[str]) -> list[str]:
    """Makes a list of strings, also of a numpy array's."""
    texts = [str(text) if isinstance(text, np.str_) else text for text in listed(sentences, "sentences")]
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidArgument.field(f"sentences[{position}]", f"is {type(text).__name__}; give strings")
    return texts
