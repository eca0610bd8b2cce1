"""Clusters: who is who, who initialises, who waits, who serves."""
