"""Weights in files: checkpoints, what others call the layers, and what training begins with."""
