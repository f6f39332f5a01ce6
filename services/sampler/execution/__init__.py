"""Works on runs: leases them, retrieves, asks the oracle, commits node by node."""
