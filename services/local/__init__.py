"""Retrieval in one process, for notebooks and batch jobs: no server, no Redis, no event loop; see `retriever.py`."""
