"""The planner: how many workers, how many ps, which network; from a model of one step in plain Python."""
