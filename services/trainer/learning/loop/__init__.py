"""The training loop: epochs, resumption, curves, several processes."""
