"""Haystack retriever of AE-Enc: the premises that explain a hypothesis."""

from haystack_integrations.components.retrievers.aeenc.retriever import AeencRetriever

__all__ = ["AeencRetriever"]
