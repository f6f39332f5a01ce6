"""Search by words: BM25 over the premises of a generation."""
