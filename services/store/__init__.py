"""What outlives a process: artifacts, the registry of labels, leases, and the Redis they live in."""
