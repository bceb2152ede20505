"""What a process has on the GPUs of one driver, for all communicators: mappings of peers' memory, executors, pinned pages."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator

from ncclx_mpi import runtime
from ncclx_mpi.device.executor import Executor
from ncclx_mpi.gpu_memory.peers import CudaIpc
from numba_kernels.cuda import driver as drivers
from numba_kernels.cuda.driver import Driver, DriverError

_PAGE = 4096


class Process:
    """See the module's text.

    Attributes
    ----------
    ipc
        Memory of the peers.
    """

    def __init__(self, driver: Driver) -> None:
        self.ipc = CudaIpc(driver)
        self._driver = driver
        self._uuids: dict[int, bytes] = {}
        self._executors: dict[int, Executor] = {}
        self._pinned: set[int] = set()
        self._writers: dict[int, Callable[[int, int], None]] = {}
        self._guard = threading.RLock()
        runtime.before_leaving(self._leave)

    def uuid(self, device: int) -> bytes:
        """The name of a GPU."""
        if device not in self._uuids:
            self._uuids[device] = self._driver.uuid(device)
        return self._uuids[device]

    def executor(self, device: int) -> Executor:
        """The executor on a GPU, which is current."""
        found = self._executors.get(device)
        if found is None:
            # What runs in the stream of one executor is not ordered before what another's says to be done: threads must not make two.
            with self._guard:
                found = self._executors.get(device) or self._executors.setdefault(device, Executor(self._driver, device))
        return found

    def writer(self, address: int) -> Callable[[int, int], None]:
        """What enqueues a write of the word at `address`, of memory that is lent again and again to one user at a time."""
        found = self._writers.get(address)
        return self._writers.setdefault(address, self._driver.writer(address)) if found is None else found

    def pin(self, page: int) -> bool:
        """Whether streams can write to a page of device words, after it was pinned if need be."""
        if page in self._pinned:
            return True
        with self._guard:
            if page not in self._pinned:
                try:
                    self._driver.register_host(page, _PAGE)
                except DriverError:
                    return False
                self._pinned.add(page)
        return True

    def _leave(self) -> None:
        """Unmap and unpin everything."""
        if drivers.current() is not self._driver:
            return
        with contextlib.suppress(DriverError):  # the contexts may be gone by now, and all of this with them
            self.ipc.close()
            for page in self._pinned:
                self._driver.unregister_host(page)


_processes: weakref.WeakKeyDictionary[Driver, Process] = weakref.WeakKeyDictionary()
_guard = threading.RLock()


def process(driver: Driver) -> Process:
    """What this process has by way of `driver`."""
    with _guard:
        return _processes.get(driver) or _processes.setdefault(driver, Process(driver))


@contextlib.contextmanager
def current(driver: Driver, device: int) -> Iterator[None]:
    """Make a device current in this thread while the body runs."""
    before = driver.current_device()
    if before != device:
        driver.use(device)
    try:
        yield
    finally:
        if before not in (None, device):
            driver.use(before)
