"""State that outlives a process: artifacts on disk, and the registry and leases in Redis."""
