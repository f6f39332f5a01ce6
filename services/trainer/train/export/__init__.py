"""Trained or published encoders written as checkpoints."""
