"""Generations in a Milvus: a collection each, for corpora beyond one machine. Needs the extra `index-milvus`."""
