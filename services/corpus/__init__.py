"""The generations of a corpus on disk, which the index writes and the trainer reads."""
