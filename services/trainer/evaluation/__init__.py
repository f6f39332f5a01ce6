"""Retrieval quality by the frozen protocol of docs/evaluation.md, from vectors or from rankings."""
