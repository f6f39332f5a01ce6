"""LangChain retriever of AE-Enc: the premises that explain a hypothesis."""

from langchain_aeenc.retriever import AeencRetriever

__all__ = ["AeencRetriever"]
