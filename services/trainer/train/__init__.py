"""Training in torch: inputs, losses, loop and export. Only the trainer's child processes import it."""
