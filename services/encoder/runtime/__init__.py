"""Runs checkpoints: tokenizers, inference sessions, runners and the models that hold them."""
