"""Published models on disk: where they are, what they say of themselves, which space they span."""
