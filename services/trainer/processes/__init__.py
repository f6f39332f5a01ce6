"""Child processes, in which torch computes apart from the event loop."""
