"""Takes calls through admission, tokenization and batches to the worker threads."""
