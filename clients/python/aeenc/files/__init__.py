"""Text files: read line by line, and written whole or not at all."""
