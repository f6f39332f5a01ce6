"""Search by vector: exact, by integers of eight bits, approximate, and the thread that batches queries."""
