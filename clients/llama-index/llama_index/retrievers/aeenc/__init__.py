"""LlamaIndex retriever of AE-Enc: the premises that explain a hypothesis."""

from llama_index.retrievers.aeenc.retriever import AeencRetriever

__all__ = ["AeencRetriever"]
