"""A corpus generation on disk: its premises and vectors. The index writes them, the trainer reads them."""
