"""The index service; see `servicer.py` for its calls and `__main__.py` for its wiring."""
