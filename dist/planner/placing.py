"""Which ps holds which variable, by the rules of several programs: the ps of each trained variable, in order."""

from collections.abc import Sequence

from dist.planner.networks import Variable
from inception_mg import dealing


def largest_first(network: Sequence[Variable], num_ps: int) -> list[int]:
    """Ours: the trained ones from the largest down, each to the ps with the fewest bytes."""
    return dealing.largest_first([variable.bytes for variable in network if variable.trained], num_ps)


def in_creation_order(network: Sequence[Variable], num_ps: int) -> list[int]:
    """TensorFlow's GreedyLoadBalancingStrategy: each variable, as it is made, to the ps with the fewest bytes."""
    places, loads = [], [0] * num_ps
    for variable in network:
        ps = loads.index(min(loads))
        loads[ps] += variable.bytes
        places += [ps] * variable.trained
    return places


def round_robin(network: Sequence[Variable], num_ps: int) -> list[int]:
    """replica_device_setter without a strategy: all variables in turn, statistics too (the program of 2016)."""
    return [number % num_ps for number, variable in enumerate(network) if variable.trained]


def round_robin_of_trained(network: Sequence[Variable], num_ps: int) -> list[int]:
    """The trained ones in turn (`distributed_replicated` of tf_cnn_benchmarks)."""
    return [number % num_ps for number in range(sum(variable.trained for variable in network))]


def loads(network: Sequence[Variable], place: Sequence[int], num_ps: int) -> list[int]:
    """Bytes of trained weights on each ps."""
    found = [0] * num_ps
    trained = [variable for variable in network if variable.trained]
    for variable, ps in zip(trained, place, strict=True):
        found[ps] += variable.bytes
    return found
