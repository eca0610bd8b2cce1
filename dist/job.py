"""Whose state the ps hold: what can be compared between the tasks of a cluster, before and after a graph is built."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Job(NamedTuple):
    """Whose state the ps hold, in what can be compared before a graph is built.

    settings: name (of a flag) -> value, equal on all workers. id: the chief's train_dir; '' on the others,
    who need not know it.
    """

    settings: dict[str, str]
    id: str = ''


def job_difference(theirs: Job, mine: Job) -> str:
    """Says in a few words where two jobs differ; '' if they are the same."""
    if theirs.id and mine.id and theirs.id != mine.id:
        return f'it is the job of {theirs.id} there and {mine.id} here'
    for name in {**theirs.settings, **mine.settings}:
        there, here = (job.settings.get(name, 'not set') for job in (theirs, mine))
        if there != here:
            return f'{name} is {there} there and {here} here'
    return ''


def describe_graph(variables: Sequence[tf.Variable]) -> dict[str, str]:
    """Type, shape and device of each variable by its name: the same on every worker, ready for JSON."""
    return {variable.op.name: f'{variable.dtype.name}{variable.shape.as_list()} on {variable.device}'
            for variable in variables}


def graph_difference(there: dict[str, str], here: dict[str, str]) -> str:
    """Says in a few words which variable differs; '' if none does."""
    for name in sorted(set(there) ^ set(here)):
        return f'the variable {name} exists only {"there" if name in there else "here"}'
    for name in sorted(there):
        if there[name] != here[name]:
            return f'the variable {name} is {there[name]} there and {here[name]} here'
    return ''
