"""Long lists on their way to the index: messages of at most CHUNK_PREMISES entries and about CHUNK_BYTES."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from aeenc.v1 import index_pb2, types_pb2

CHUNK_PREMISES = 512
CHUNK_BYTES = 512 * 1024


async def build_requests(
    header: index_pb2.BuildHeader, premises: Iterable[types_pb2.Premise]
) -> AsyncIterator[index_pb2.BuildGenerationRequest]:
    """The messages of a build: its header, then its premises in chunks."""
    yield index_pb2.BuildGenerationRequest(header=header)
    chunk, chunk_bytes = index_pb2.PremiseChunk(), 0
    for premise in premises:
        chunk.premises.append(premise)
        chunk_bytes += premise.ByteSize()
        if len(chunk.premises) >= CHUNK_PREMISES or chunk_bytes >= CHUNK_BYTES:
            yield index_pb2.BuildGenerationRequest(chunk=chunk)
            chunk, chunk_bytes = index_pb2.PremiseChunk(), 0
    if chunk.premises:
        yield index_pb2.BuildGenerationRequest(chunk=chunk)


async def explanation_requests(
    header: index_pb2.ExplanationsHeader, explanations: Iterable[tuple[str, Sequence[str]]]
) -> AsyncIterator[index_pb2.PutExplanationsRequest]:
    """The messages that put explanations, (text, premise ids) each: their header, then chunks."""
    yield index_pb2.PutExplanationsRequest(header=header)
    chunk, chunk_bytes = index_pb2.ExplanationChunk(), 0
    for text, premise_ids in explanations:
        one = chunk.explanations.add(text=text, premise_ids=premise_ids)
        chunk_bytes += one.ByteSize()
        if len(chunk.explanations) >= CHUNK_PREMISES or chunk_bytes >= CHUNK_BYTES:
            yield index_pb2.PutExplanationsRequest(chunk=chunk)
            chunk, chunk_bytes = index_pb2.ExplanationChunk(), 0
    if chunk.explanations:
        yield index_pb2.PutExplanationsRequest(chunk=chunk)
