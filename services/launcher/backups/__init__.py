"""Backups of a deployment: Redis and artifacts of one moment, made under load, and brought back elsewhere."""
