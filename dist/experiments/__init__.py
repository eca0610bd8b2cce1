"""The well-known claims about distributed training, run: each module has `run`, whose result is a table and a figure.

They use the parts that train: placements, the builder of the step, the ps strategy, the synchronous replicas, the
launcher. Where this machine is too small, a tower or a link waits by the clock instead of working, and the result
says so.
"""
