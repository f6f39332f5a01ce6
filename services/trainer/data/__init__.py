"""Judged pairs: where they come from, and the training set made of them."""
