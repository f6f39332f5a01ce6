"""Building blocks of the typed clients: requests and answers as values, bulk streams, waiting for long work."""
