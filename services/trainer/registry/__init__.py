"""Checkpoints, labels and tandems: what is served, and how that changes."""
