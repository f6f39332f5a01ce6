"""A Milvus that proposes premises by vectors, for corpora beyond one machine. Needs the extra `index-milvus`."""
