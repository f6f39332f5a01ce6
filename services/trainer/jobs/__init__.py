"""Training jobs: their records in Redis, the runner, its child processes and what is asked of them."""
