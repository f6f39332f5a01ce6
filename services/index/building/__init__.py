"""From streamed premises to a committed generation."""
