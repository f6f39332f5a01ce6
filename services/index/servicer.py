"""The index's calls: convert, delegate, convert back. Answers that may be large leave as bytes, serialised once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aeenc.v1 import index_pb2, index_pb2_grpc
from services.index import convert
from services.index.building.builder import Builder
from services.index.catalogue.catalogue import Catalogue
from services.index.catalogue.listing import Listing
from services.index.ranking.stages import Retrieval
from services.kit.convert import deadline_s, opened_by, request_id
from services.kit.limits import Limits
from services.kit.server import GrpcServer, to_service_info


class IndexServicer(index_pb2_grpc.IndexServiceServicer):
    """Searches and reads."""

    def __init__(self, server: GrpcServer, catalogue: Catalogue, retrieval: Retrieval, limits: Limits) -> None:
        self._server = server
        self._catalogue = catalogue
        self._retrieval = retrieval
        self._listing = Listing(catalogue, limits)
        self._limits = limits
        self._answers = convert.Answers(limits)

    async def Search(self, request: index_pb2.SearchRequest, context: Any) -> bytes:
        query = convert.to_vector_query(request)
        answer = await self._retrieval.search(query, deadline_s=deadline_s(context))
        items = len(query.vectors) * query.scope.k
        return await self._answers.make(items, convert.to_search_response, answer, request.timings)

    async def Retrieve(self, request: index_pb2.RetrieveRequest, context: Any) -> bytes:
        query = convert.to_text_query(request, request_id(context))
        answer = await self._retrieval.retrieve(query, deadline_s=deadline_s(context))
        return await self._answers.make(len(query.texts) * query.scope.k, convert.to_retrieve_response, answer)

    async def GetPremises(self, request: index_pb2.GetPremisesRequest, _context: Any) -> bytes:
        found, generation = await self._listing.named(request.corpus, request.ids, request.generation)
        return await self._answers.make(len(found), convert.to_premises_response, found, generation)

    async def ListPremises(
        self, request: index_pb2.ListPremisesRequest, _context: Any
    ) -> index_pb2.ListPremisesResponse:
        page, token, served = await self._listing.premises(
            request.corpus, page_size=request.page_size, token=request.page_token, generation=request.generation
        )
        return index_pb2.ListPremisesResponse(
            premises=map(convert.to_premise, page),
            next_page_token=token,
            generation=served.id,
            total_size=served.index.rows,
        )

    async def ListCorpora(self, request: index_pb2.ListCorporaRequest, _context: Any) -> index_pb2.ListCorporaResponse:
        page, token = self._listing.corpora(page_size=request.page_size, token=request.page_token)
        found = [convert.to_corpus_info(name, served, self._catalogue.replicas(name)) for name, served in page]
        return index_pb2.ListCorporaResponse(corpora=found, next_page_token=token)

    async def GetInfo(
        self, _request: index_pb2.IndexServiceGetInfoRequest, _context: Any
    ) -> index_pb2.IndexServiceGetInfoResponse:
        return index_pb2.IndexServiceGetInfoResponse(service=to_service_info(self._server, self._limits))


class IndexAdminServicer(index_pb2_grpc.IndexAdminServiceServicer):
    """Builds generations and switches between them."""

    def __init__(self, catalogue: Catalogue, builder: Builder, limits: Limits) -> None:
        self._catalogue = catalogue
        self._builder = builder
        self._limits = limits
        self._listing = Listing(catalogue, limits)

    async def BuildGeneration(
        self, requests: AsyncIterator[index_pb2.BuildGenerationRequest], context: Any
    ) -> AsyncIterator[index_pb2.BuildGenerationResponse]:
        opened = opened_by("header", requests)
        opening = await anext(opened)
        spec = convert.to_build_spec(opening.header, timeout_s=deadline_s(context))
        async for progress in self._builder.build(spec, convert.to_premises(opening, opened)):
            active_id = self._catalogue.active_id(spec.corpus)
            yield convert.to_build_response(progress, active_id)

    async def ActivateGeneration(
        self, request: index_pb2.ActivateGenerationRequest, _context: Any
    ) -> index_pb2.ActivateGenerationResponse:
        expected = request.expected_generation if request.HasField("expected_generation") else None
        done = await self._catalogue.activate(
            request.corpus, request.generation, expected=expected, request_id=request.request_id
        )
        return index_pb2.ActivateGenerationResponse(
            active=convert.to_generation(done.active, active=True) if done.active else None,
            previous_generation=done.previous or "",
            replicas=map(convert.to_replica, done.replicas),
        )

    async def ListGenerations(
        self, request: index_pb2.ListGenerationsRequest, _context: Any
    ) -> index_pb2.ListGenerationsResponse:
        page, token, held_by = await self._listing.generations(
            request.corpus, page_size=request.page_size, token=request.page_token
        )
        active_id = self._catalogue.active_id(request.corpus)
        return index_pb2.ListGenerationsResponse(
            generations=[
                convert.to_generation(one, active=one.id == active_id, held_by=held_by.get(one.id, ())) for one in page
            ],
            next_page_token=token,
        )

    async def VerifyGeneration(
        self, request: index_pb2.VerifyGenerationRequest, _context: Any
    ) -> index_pb2.VerifyGenerationResponse:
        artifact = await self._catalogue.verify(request.corpus, request.generation)
        is_active = self._catalogue.active_id(request.corpus) == artifact.id
        return index_pb2.VerifyGenerationResponse(generation=convert.to_generation(artifact, active=is_active))

    async def DeleteGeneration(
        self, request: index_pb2.DeleteGenerationRequest, _context: Any
    ) -> index_pb2.DeleteGenerationResponse:
        replicas = await self._catalogue.delete(
            request.corpus, request.generation, despite=request.despite, request_id=request.request_id
        )
        return index_pb2.DeleteGenerationResponse(replicas=map(convert.to_replica, replicas))

    async def HoldGeneration(
        self, request: index_pb2.HoldGenerationRequest, _context: Any
    ) -> index_pb2.HoldGenerationResponse:
        await self._catalogue.check_known(request.corpus)
        await self._catalogue.holds.put(request.corpus, request.generation, request.holder)
        return index_pb2.HoldGenerationResponse()

    async def ReleaseGeneration(
        self, request: index_pb2.ReleaseGenerationRequest, _context: Any
    ) -> index_pb2.ReleaseGenerationResponse:
        await self._catalogue.check_known(request.corpus)
        await self._catalogue.holds.remove(request.corpus, request.generation, request.holder)
        return index_pb2.ReleaseGenerationResponse()

    async def PutExplanations(
        self, requests: AsyncIterator[index_pb2.PutExplanationsRequest], _context: Any
    ) -> index_pb2.PutExplanationsResponse:
        corpus, replace, explanations = await convert.to_explanations(requests, self._limits)
        total, replicas = await self._catalogue.explain(corpus, explanations, replace=replace)
        return index_pb2.PutExplanationsResponse(total_size=total, replicas=map(convert.to_replica, replicas))
