"""Builds of a generation by many processes."""
