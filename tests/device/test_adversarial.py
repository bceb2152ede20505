"""Calls on device arrays under streams that run as late and as much out of order as they may: no wrong byte, no deadlock.

Each rank has other delays and another current stream in each run; the seed that a failure names repeats the run's choices.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from ncclx_mpi.testing.driver_double import DeviceArray, Double, InterfaceArray, TensorArray
from ncclx_mpi.testing.driver_double.arrays import using
from tests.device.cases import CASES, FLAVOURS, Make, doing, empty, own
from tests.device.doubles import ONE_NODE, late, values_of
from tests.device.in_streams import IN_STREAMS, split_lengths, then_spoil
from tests.device.messages import MESSAGES

LENGTHS = (0, 1, 7, 64, 1000, 5000, 40_000)
SEEDS = 1000
SIZES = (2, 3, 4)
KINDS = (DeviceArray, InterfaceArray, TensorArray)


def collective(name: str, flavour: str, comm: Any, make: Make, length: int) -> list[Any]:
    return CASES[name](comm, then_spoil(doing(comm, flavour)), make, length)


def dynamic(comm: Any, make: Make, length: int) -> list[Any]:
    """To and fro, two segments for each rank; the lengths lie where the data do."""
    splits = split_lengths(comm, length)
    sent, back = make(own(comm, int(splits.sum()))), make(empty(int(splits.sum())))
    areas, every = (
        make(empty(comm.size * 2 * length).reshape(comm.size, 2 * length)),
        make(empty(2 * comm.size**2).reshape(comm.size, -1)),
    )
    comm.Alltoallv_dynamic(sent, areas, make(splits), allsplits=every)
    comm.Alltoallv_dynamic_combine(areas, back, every)
    return [areas, every, back]


class Workload(NamedTuple):
    """Something that ranks do with arrays of `make` and `length` elements; it returns what was received.

    Attributes
    ----------
    run
        Called with (comm, make, length).
    reference
        What gives the right values from NumPy arrays; `run` itself unless it takes none.
    is_mixed
        Whether each rank may take a NumPy array instead of a device's.
    """

    run: Callable[[Any, Make, int], list[Any]]
    reference: Callable[[Any, Make, int], list[Any]] | None = None
    is_mixed: bool = True


WORKLOADS: dict[str, Workload] = {
    **{f"{flavour} {name}": Workload(partial(collective, name, flavour)) for name in CASES for flavour in FLAVOURS},
    **{f"messages: {name}": Workload(message) for name, message in MESSAGES.items()},
    "dynamic": Workload(dynamic),
    **{f"in streams: {name}": Workload(run, reference, is_mixed=False) for name, (run, reference) in IN_STREAMS.items()},
}
"""Whatever ranks can do with device arrays: a line here, and it runs among all others."""


def check(comm: Any, driver: Double, seed: int, wanted: dict[tuple[str, int], Any]) -> None:
    """One run: three workloads, chosen alike on all ranks, with kinds of arrays and streams chosen by each."""
    common, mine = random.Random(seed), random.Random(1000 * seed + comm.rank)
    random.seed(1000 * seed + comm.rank)
    driver.reseed(64 * seed + comm.rank)
    streams = [0, driver.create_stream(), driver.create_stream(is_blocking=True)]
    for name in common.choices(list(WORKLOADS), k=3):
        workload, length = WORKLOADS[name], common.choice(LENGTHS)
        if (name, length) not in wanted:
            wanted[name, length] = values_of((workload.reference or workload.run)(comm, np.array, length))
        is_on_device = mine.random() < 0.8 or not workload.is_mixed
        make = partial(late, kind=mine.choice(KINDS)) if is_on_device else np.array
        with using(mine.choice(streams)):
            found = values_of(workload.run(comm, make, length))
            for one, other in zip(found, wanted[name, length], strict=True):
                np.testing.assert_equal(one, other, err_msg=f"seed {seed}: {name} of {length}")
    for stream in streams[1:]:
        driver.destroy_stream(stream)


@pytest.mark.ranks(*SIZES, timeout=900, topology=ONE_NODE)
@pytest.mark.parametrize("is_shared", [True, False], ids=["one GPU", "a GPU each"])
def test_no_order_of_streams_breaks_a_call(comm: Any, is_shared: bool, full: bool) -> None:
    """A thousand seeds in one launch for each layout; without --full each layout takes its share of them."""
    if is_shared:
        driver = Double(comm.rank)
    else:
        visible = [(comm.rank + k) % comm.size for k in range(comm.size)]
        driver = Double(comm.rank, devices=comm.size, visible=visible)
    layout = 2 * SIZES.index(comm.size) + is_shared
    wanted: dict[tuple[str, int], Any] = {}
    with driver:
        driver.use(0)
        for seed in range(SEEDS) if full else range(layout, SEEDS, 2 * len(SIZES)):
            try:
                check(comm, driver, seed, wanted)
            except BaseException as error:
                error.add_note(f"in the run of seed {seed}")
                raise


@pytest.mark.ranks(2)
def test_calls_are_complete_on_return(comm: Any) -> None:
    """What was received can be read from any stream, whatever was enqueued where before the call."""
    with Double(comm.rank) as driver:
        driver.use(0)
        mine, other = driver.create_stream(), driver.create_stream()
        for seed in range(30):
            driver.reseed(2 * seed + comm.rank)
            values = np.arange(3000.0) + seed
            with using(mine):
                sent, summed, received = late(values + comm.rank), late(np.zeros(3000)), late(np.zeros(3000))
                comm.Allreduce(sent, summed)
                comm.Sendrecv(sent, 1 - comm.rank, recvbuf=received)
            with using(other):
                np.testing.assert_array_equal(summed.get(), 2 * values + 1)
                np.testing.assert_array_equal(received.get(), values + 1 - comm.rank)


PEER_DIES = """
import os, signal, time
import numpy as np
from mpi4py import MPI
from ncclx_mpi.testing.driver_double import DeviceArray, Double
from numba_kernels.cuda.driver import WAIT_AT_LEAST, Step

comm, word = MPI.COMM_WORLD, np.zeros(1, np.int64)
if comm.rank == 1:
    comm.recv(source=0)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(None, 1)
with Double(patience=60) as driver:
    driver.use(0)
    driver.register_host(word.ctypes.data, 8)
    array = DeviceArray.from_host(np.arange(1000.0))
    driver.batch(0, [Step(WAIT_AT_LEAST, word.ctypes.data, 1)])
    begun = time.monotonic()
    try:
        comm.{call}
    except MPI.Exception as error:
        print(error.Get_error_class() == MPI.ERR_PROC_FAILED, time.monotonic() - begun < 5, flush=True)
    word[0] = 1
    np.testing.assert_array_equal(array.get(), np.arange(1000.0))
"""


@pytest.mark.parametrize("call", ["Send(array, 1)", "Allreduce(MPI.IN_PLACE, array)"])
def test_a_peer_dies_while_a_call_waits_for_a_stream(call: str) -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "--timeout", "60", "-c", PEER_DIES.replace("{call}", call)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert done.returncode == 128 + signal.SIGKILL
