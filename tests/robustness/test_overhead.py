"""What naming the datatype costs: the form ``[buffer, type]`` is as plain as the bare array."""

import time

import numpy as np
import pytest

LIMIT_NS = 60
CALLS, TURNS = 200, 70
"""Turns so short that most of them have a core to themselves, whatever else runs."""


def nanoseconds(call, argument):
    begun = time.perf_counter_ns()
    for _ in range(CALLS):
        call(argument)
    return (time.perf_counter_ns() - begun) / CALLS


def difference_of_pairs(call, spec, array):
    """Measured in turns, so that both have their share of a core that is faster for a while."""
    named, bare = zip(*((nanoseconds(call, spec), nanoseconds(call, array)) for _ in range(TURNS)), strict=True)
    return min(named) - min(bare)


@pytest.mark.ranks(1, timeout=60)
def test_buffer_and_type_cost_what_the_array_costs(comm):
    from ncclx_mpi import MPI

    array = np.zeros(8)
    spec = [array, MPI.DOUBLE]
    calls = {
        "Bcast": comm.Bcast,
        "Allreduce": lambda buffer: comm.Allreduce(buffer, array[:]),
        "Send to nobody": lambda buffer: comm.Send(buffer, MPI.PROC_NULL),
    }
    for name, call in calls.items():
        for _ in range(3):
            call(array), call(spec)
        difference = min(difference_of_pairs(call, spec, array) for _ in range(3))
        assert difference < LIMIT_NS, f"{name}: {difference:.0f} ns"
