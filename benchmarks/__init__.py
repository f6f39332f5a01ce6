"""What the benchmarks share: rows, load, a fleet of one encoder, checkpoints, and the baselines."""
