"""The scores of a checkpoint, of each new checkpoint, and per class."""
