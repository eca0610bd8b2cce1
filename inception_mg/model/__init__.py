"""Inception v3: layers, network, losses, metrics, checkpoints."""
