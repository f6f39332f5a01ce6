"""Training jobs: their records in Redis, the operations on them, and the runner."""
