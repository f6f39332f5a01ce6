"""From texts or vectors to ranked premises: encoding, fusion, feedback, the prior and re-ranking."""
