"""Chooses settings by gold: those of words, and the weights of Retrieve out of fold. Commands, no service."""
