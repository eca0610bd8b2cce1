"""Towers, optimizer, the training step and the training loop."""
