"""Which generations there are, which one serves a corpus, and the pages that list them."""
