"""A checkpoint becomes a model for others, and such a model classifies files."""
