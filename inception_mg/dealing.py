"""Which of several devices holds which variable, from their sizes alone. Standard library only."""

from collections.abc import Sequence


def largest_first(sizes: Sequence[int], devices: int) -> list[int]:
    """The device of each size: the largest first, each to the device with the fewest bytes so far.

    For Inception v3 on 2, 4 and 8 ps the fullest then has 1.00 times the mean. Dealt in the order in which the network
    makes them it has 1.07, 1.19 and 1.39 times; in turn, 2.00, 2.19 and 2.34 times.
    """
    places, loads = [0] * len(sizes), [0] * devices
    for number in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        places[number] = loads.index(min(loads))
        loads[places[number]] += sizes[number]
    return places
