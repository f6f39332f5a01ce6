"""HTTP gateway of AE-Enc: OpenAI's embeddings, TEI's routes, and retrieval. It only translates."""

from aeenc_gateway.app import make_app

__all__ = ["make_app"]
