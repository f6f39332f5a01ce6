"""Losses, and the objectives that put them on a job's data."""
