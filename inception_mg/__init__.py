"""Inception v3 on one device, many GPUs, or a cluster: the library."""
