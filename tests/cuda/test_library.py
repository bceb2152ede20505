"""The real driver's calls, against C functions of the same signatures that note what they were given.

The signatures themselves were compared with ``cuda.h`` of CUDA 13.0: a C library with its prototypes gave the same notes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from numba_kernels.cuda import driver, library, loaded
from numba_kernels.cuda.driver import (
    CAPTURED,
    FOREIGN,
    NOT_CURRENT,
    WAIT_AT_LEAST,
    WRITE,
    Batch,
    Copy,
    DriverError,
    Launch,
    Memory,
    Step,
)
from numba_kernels.cuda.library import Library

BASE, STREAM, EVENT, MODULE, FUNCTION = 0x7F00_0000_0000, 0x5550, 0x99, 0x31, 0x32
HANDLE = bytes(range(64))


def plain(argument: Any) -> Any:
    """What can be read of an argument without knowing the function."""
    return None if isinstance(argument, ctypes._Pointer) else argument


class Functions:
    """A driver library for two devices: every call is noted, answers come from `answers`, statuses from `statuses`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.statuses: dict[str, int] = {}
        self.attributes = {2: 2, 7: 77, 8: 0, 9: 1, 10: 1, 11: BASE, 12: 8192}
        self.steps: list[tuple[int, int, int, int]] = []
        self.parameters: list[int] = []
        self.current = 0
        self.made_in = 0x1000
        self.devices = 2
        for name, types in library.SIGNATURES.items():
            callback = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self._noted(name))
            setattr(self, name, callback)

    def _noted(self, name: str) -> Callable[..., int]:
        answer = getattr(self, f"_{name}", None)

        def called(*arguments: Any) -> int:
            self.calls.append((name, *map(plain, arguments)))
            status = self.statuses.get(name, 0)
            if not status and answer is not None:
                status = answer(*arguments) or 0
            return status

        return called

    def last(self, name: str) -> tuple[Any, ...]:
        return next(call[1:] for call in reversed(self.calls) if call[0] == name)

    def count(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)

    def _cuGetErrorName(self, _status: int, text: Any) -> None:
        text[0] = b"CUDA_ERROR_NAME"

    def _cuGetErrorString(self, _status: int, text: Any) -> None:
        text[0] = b"its reason"

    def _cuDeviceGetCount(self, found: Any) -> None:
        found[0] = self.devices

    def _cuDeviceGet(self, found: Any, ordinal: int) -> None:
        found[0] = ordinal

    def _cuDeviceGetUuid_v2(self, found: int, device: int) -> None:
        ctypes.memmove(found, bytes([device]) * 16, 16)

    def _cuDeviceGetAttribute(self, found: Any, attribute: int, _device: int) -> None:
        found[0] = {75: 9, 76: 0, 16: 132}[attribute]

    def _cuDevicePrimaryCtxRetain(self, found: Any, device: int) -> None:
        found[0] = 0x1000 + device

    def _cuCtxGetCurrent(self, found: Any) -> None:
        found[0] = self.current

    def _cuCtxSetCurrent(self, context: int) -> None:
        self.current = context

    def _cuCtxGetDevice(self, found: Any) -> int:
        found[0] = self.current - 0x1000
        return 0 if self.current else 201

    def _cuPointerGetAttribute(self, found: int, attribute: int, _address: int) -> int:
        ctypes.c_uint64.from_address(found).value = self.attributes[attribute]
        return 0 if self.attributes[2] else 1

    def _cuPointerGetAttributes(self, count: int, wanted: int, values: int, _address: int) -> None:
        """Write each attribute as narrow as the driver may: one byte for booleans, four for numbers."""
        numbers = (ctypes.c_int * count).from_address(wanted)
        places = (ctypes.c_void_p * count).from_address(values)
        widths = {2: 4, 7: 8, 8: 1, 9: 4, 10: 1, 11: 8, 12: 8}
        for number, place in zip(numbers, places, strict=True):
            ctypes.memmove(place, (self.attributes.get(number, 0) & (1 << 64) - 1).to_bytes(8, "little"), widths[number])

    def _cuMemAlloc_v2(self, found: Any, _nbytes: int) -> None:
        found[0] = BASE

    def _cuMemHostGetDevicePointer_v2(self, found: Any, address: int, _flags: int) -> None:
        found[0] = self.attributes.get(3, address)

    def _cuIpcGetMemHandle(self, handle: Any, _address: int) -> None:
        ctypes.memmove(handle, HANDLE, 64)

    def _cuIpcOpenMemHandle_v2(self, found: Any, handle: Any, _flags: int) -> None:
        found[0] = BASE if bytes(handle) == HANDLE else 0

    def _cuStreamCreate(self, found: Any, _flags: int) -> None:
        found[0] = STREAM

    def _cuStreamGetCtx(self, _stream: int, found: Any) -> None:
        found[0] = self.made_in

    def _cuStreamIsCapturing(self, stream: int, found: Any) -> None:
        found[0] = int(stream == STREAM)

    def _cuStreamBatchMemOp_v2(self, _stream: int, count: int, table: int, _flags: int) -> None:
        for index in range(count):
            at = table + 48 * index
            kind, flags = (ctypes.c_uint.from_address(at + offset).value for offset in (0, 24))
            address, value = (ctypes.c_uint64.from_address(at + offset).value for offset in (8, 16))
            self.steps.append((kind, address, value, flags))

    def _cuEventCreate(self, found: Any, _flags: int) -> None:
        found[0] = EVENT

    def _cuModuleLoadDataEx(self, found: Any, *_rest: Any) -> None:
        found[0] = MODULE

    def _cuModuleGetFunction(self, found: Any, _module: int, _name: bytes) -> None:
        found[0] = FUNCTION

    def _cuLaunchKernel(self, *arguments: Any) -> None:
        extra = (ctypes.c_uint64 * 5).from_address(arguments[-1])
        assert (extra[0], extra[2], extra[4]) == (1, 2, 0)
        count = ctypes.c_size_t.from_address(extra[3]).value // 8
        self.parameters = list((ctypes.c_int64 * count).from_address(extra[1]))


class Kernel:
    """A kernel that counts how often its code is asked for."""

    name = "kernel"

    def __init__(self) -> None:
        self.archs: list[tuple[int, int]] = []

    def cubin(self, arch: tuple[int, int]) -> tuple[bytes, str]:
        self.archs.append(arch)
        return b"\x7fELF\0code", "entry"

    def on_cpu(self, threads: int, *arguments: int) -> None:
        raise AssertionError("not on this machine")


@pytest.fixture
def functions() -> Functions:
    return Functions()


@pytest.fixture
def real(functions: Functions) -> Library:
    return Library(functions)


def test_devices(real: Library) -> None:
    assert real.device_count() == 2
    assert real.uuid(1) == b"\x01" * 16
    assert (real.arch(0), real.multiprocessors(0)) == ((9, 0), 132)


def test_contexts_are_primary_and_retained_once(real: Library, functions: Functions) -> None:
    assert real.current_device() is None
    for device in (1, 0, 1):
        real.use(device)
        assert real.current_device() == device
    assert functions.count("cuDevicePrimaryCtxRetain") == 2


def test_the_number_of_an_allocation(real: Library, functions: Functions) -> None:
    assert real.buffer_id(BASE + 5) == 77
    functions.attributes[2] = 0  # none of the driver's
    assert real.buffer_id(BASE + 5) == 0
    functions.statuses["cuPointerGetAttribute"] = 700
    with pytest.raises(DriverError, match="cuPointerGetAttribute returned CUDA_ERROR_NAME"):
        real.buffer_id(BASE + 5)


def test_a_watch_sees_what_changes(real: Library, functions: Functions) -> None:
    real.use(1)
    is_as_before = real.watch([driver.LEGACY_STREAM], [(BASE, 77), (BASE + 64, 77)])
    assert is_as_before() and is_as_before()
    real.use(0)
    assert not is_as_before()
    real.use(1)
    assert not real.watch([driver.LEGACY_STREAM, STREAM], [])(), "one that is being captured"
    functions.attributes[7] = 78
    assert not is_as_before()
    functions.attributes[7] = 77
    assert is_as_before()
    for name in ("cuCtxGetCurrent", "cuStreamIsCapturing", "cuPointerGetAttribute"):
        functions.statuses[name] = 700
        assert not is_as_before()
        functions.statuses[name] = 0


def test_a_writer_writes_its_word(real: Library, functions: Functions) -> None:
    write = real.writer(BASE)
    for value in (5, 1 << 40):
        write(STREAM, value)
        assert functions.steps[-1][1:3] == (BASE, value), functions.steps
        assert functions.last("cuStreamBatchMemOp_v2")[:2] == (STREAM, 1)
    functions.statuses["cuStreamBatchMemOp_v2"] = 700
    with pytest.raises(DriverError, match="cuStreamBatchMemOp_v2"):
        write(STREAM, 6)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, Memory(True, 1, BASE, 8192, 77, True)),
        ({10: 0}, Memory(True, 1, BASE, 8192, 77, False)),
        ({8: 1}, Memory(False, 1, BASE, 8192, 77, True)),
        ({8: 1, 2: 1}, Memory(False, 1, BASE, 8192, 77, True)),
        ({2: 1, 9: -2}, Memory(False, -1, BASE, 8192, 77, True)),
        ({2: 0}, None),
    ],
    ids=["device", "pool", "managed", "managed on the host", "pinned", "plain"],
)
def test_what_an_address_is(real: Library, functions: Functions, attributes: dict[int, int], expected: Memory | None) -> None:
    for _ in range(2):  # the room for the answers is used again
        functions.attributes = {2: 2, 7: 2**64 - 1, 8: 1, 9: -1, 10: 1, 11: 2**64 - 1, 12: 2**64 - 1}
        real.memory(BASE)
        functions.attributes = {2: 2, 7: 77, 8: 0, 9: 1, 10: 1, 11: BASE, 12: 8192} | attributes
        assert real.memory(BASE + 5) == expected
    assert functions.last("cuPointerGetAttributes")[-1] == BASE + 5


@pytest.mark.parametrize("status", [1, 3, 4, 201])
def test_strange_addresses_are_the_hosts(real: Library, functions: Functions, status: int) -> None:
    functions.statuses["cuPointerGetAttributes"] = status
    assert real.memory(5) is None


def test_memory(real: Library, functions: Functions) -> None:
    assert real.allocate(100) == BASE
    real.free(BASE)
    real.register_host(4096, 8192)
    real.unregister_host(4096)
    assert functions.last("cuMemAlloc_v2")[1:] == (100,)
    assert functions.last("cuMemFree_v2") == (BASE,)
    assert functions.last("cuMemHostRegister_v2") == (4096, 8192, 3)
    assert functions.last("cuMemHostUnregister") == (4096,)


def test_pinned_memory_must_be_where_the_cpu_has_it(real: Library, functions: Functions) -> None:
    functions.attributes[3] = 0x8000
    with pytest.raises(DriverError, match="0x8000 for the GPU"):
        real.register_host(4096, 4096)
    assert functions.last("cuMemHostUnregister") == (4096,)


def test_handles_are_passed_whole(real: Library, functions: Functions) -> None:
    assert real.export(BASE) == HANDLE
    assert real.open(HANDLE) == BASE
    real.close(BASE)
    assert functions.last("cuIpcOpenMemHandle_v2")[-1] == 1
    assert functions.last("cuIpcCloseMemHandle") == (BASE,)


def test_streams(real: Library, functions: Functions) -> None:
    stream = real.create_stream()
    assert (stream, functions.last("cuStreamCreate")[1:]) == (STREAM, (1,))
    assert real.is_idle(stream)
    functions.statuses["cuStreamQuery"] = 600
    assert not real.is_idle(stream)
    functions.statuses["cuStreamQuery"] = 700
    with pytest.raises(DriverError, match="cuStreamQuery returned CUDA_ERROR_NAME \\(700\\): its reason") as caught:
        real.is_idle(stream)
    assert caught.value.code == 700
    assert real.is_capturing(stream)
    assert not real.is_capturing(driver.LEGACY_STREAM)
    real.synchronize(stream)
    real.copy(BASE, 4096, 17, stream)
    real.fill(BASE, 255, 9, driver.PER_THREAD_STREAM)
    real.destroy_stream(stream)
    assert functions.calls[-4:] == [
        ("cuStreamSynchronize", STREAM),
        ("cuMemcpyAsync", BASE, 4096, 17, STREAM),
        ("cuMemsetD8Async", BASE, 255, 9, 2),
        ("cuStreamDestroy_v2", STREAM),
    ]


def test_streams_are_examined(real: Library, functions: Functions) -> None:
    real.use(0)
    context, other = real.context(), STREAM + 0x10
    assert real.examine(other, context) == 0
    assert real.examine(STREAM, context) == CAPTURED
    functions.made_in = 0x1001
    assert real.examine(other, context) == FOREIGN
    assert real.examine(STREAM, 0x1001) == NOT_CURRENT | CAPTURED
    assert (real.stream_device(other), real.current_device()) == (1, 0)
    functions.statuses["cuStreamGetCtx"] = 400
    with pytest.raises(DriverError, match="cuStreamGetCtx returned CUDA_ERROR_NAME \\(400\\)"):
        real.examine(other, context)
    functions.statuses["cuStreamIsCapturing"] = 401
    with pytest.raises(DriverError, match="cuStreamIsCapturing returned CUDA_ERROR_NAME \\(401\\)"):
        real.examine(other, context)


def test_what_is_bound_is_enqueued_again_and_again(real: Library, functions: Functions) -> None:
    real.use(0)
    steps = real.pack([Step(WAIT_AT_LEAST, 0x1000, 5), Step(WRITE, 0x1000, 0)])
    parameters = list(range(1, 12))
    work = [Copy(BASE, BASE + 4096, 17), Batch(steps), Launch(Kernel(), 3, 128, parameters), Copy(4096, BASE, 1 << 40)]
    enqueue, nothing = real.bind(STREAM, work), real.bind(STREAM, [])
    del work, steps
    for _ in range(2):
        functions.calls.clear()
        functions.steps.clear()
        enqueue()
        nothing()
        first, batch, launch, last = functions.calls
        assert first == ("cuMemcpyAsync", BASE, BASE + 4096, 17, STREAM)
        assert (batch[:3], batch[4], functions.steps) == (
            ("cuStreamBatchMemOp_v2", STREAM, 2), 0, [(4, 0x1000, 5, 0), (5, 0x1000, 0, 0)],
        )  # fmt: skip
        assert launch[:11] == ("cuLaunchKernel", FUNCTION, 3, 1, 1, 128, 1, 1, 0, STREAM, None)
        assert functions.parameters == parameters
        assert last == ("cuMemcpyAsync", 4096, BASE, 1 << 40, STREAM)


def test_what_is_bound_stops_where_the_driver_refuses(real: Library, functions: Functions) -> None:
    enqueue = real.bind(STREAM, [Copy(BASE, 4096, 1), Batch(real.pack([Step(WRITE, BASE, 1)])), Copy(BASE, 4096, 2)])
    functions.statuses["cuStreamBatchMemOp_v2"] = 719
    with pytest.raises(DriverError, match="cuStreamBatchMemOp_v2 returned CUDA_ERROR_NAME \\(719\\)") as caught:
        enqueue()
    assert caught.value.code == 719
    assert functions.count("cuMemcpyAsync") == 1


def test_steps_are_packed_in_order(real: Library, functions: Functions) -> None:
    real.batch(STREAM, [Step(WAIT_AT_LEAST, 0x1000, 5), Step(WRITE, 0x2000, -1), Step(WAIT_AT_LEAST, BASE, 1 << 63)])
    assert functions.steps == [(4, 0x1000, 5, 0), (5, 0x2000, 2**64 - 1, 0), (4, BASE, 1 << 63, 0)]
    assert functions.count("cuStreamBatchMemOp_v2") == 1


def test_events_go_with_their_object(real: Library, functions: Functions) -> None:
    event = real.record(STREAM)
    real.wait(2, event)
    assert functions.last("cuEventRecord") == (EVENT, STREAM)
    assert functions.last("cuStreamWaitEvent") == (2, EVENT, 0)
    assert not functions.count("cuEventDestroy_v2")
    del event
    assert functions.last("cuEventDestroy_v2") == (EVENT,)


def test_kernels_are_loaded_once_a_context(real: Library, functions: Functions) -> None:
    kernel = Kernel()
    with pytest.raises(DriverError, match="no CUDA context"):
        real.launch(kernel, STREAM, 1, 1, [])
    for device in (0, 1, 0):
        real.use(device)
        for arguments in ([1, -2, BASE], (4, 5, 6)):
            real.launch(kernel, STREAM, 3, 128, arguments)
            assert functions.parameters == list(arguments)
    assert functions.last("cuLaunchKernel")[:9] == (FUNCTION, 3, 1, 1, 128, 1, 1, 0, STREAM)
    assert functions.count("cuModuleLoadDataEx") == 2
    assert functions.last("cuModuleGetFunction")[1:] == (MODULE, b"entry")
    assert kernel.archs == [(9, 0), (9, 0)]


@pytest.fixture
def no_driver_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver._Use, "machine", None)
    monkeypatch.setattr(driver._Use, "is_tried", False)


@pytest.mark.usefixtures("no_driver_yet")
def test_the_machines_own_driver_is_used_once_it_is_loaded(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.current() is None
    monkeypatch.setattr(loaded, "library", lambda: functions)
    monkeypatch.setattr(loaded, "load", lambda: functions)
    found = driver.current()
    assert isinstance(found, Library)
    assert driver.current() is found


@pytest.mark.usefixtures("no_driver_yet")
def test_a_driver_without_gpu_is_none_and_says_why(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    functions.statuses["cuInit"] = 100
    with pytest.raises(DriverError) as caught:
        Library(functions)
    assert caught.value.code == 100
    monkeypatch.setattr(loaded, "library", lambda: functions)
    monkeypatch.setattr(loaded, "load", lambda: functions)
    assert driver.current() is None
    assert driver.current() is None
    assert functions.count("cuInit") == 2


@pytest.mark.usefixtures("no_driver_yet")
def test_who_looks_for_a_gpu_is_told_why_there_is_none(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "load", lambda: None)
    with pytest.raises(DriverError, match="no CUDA driver is installed"):
        driver.find()
    monkeypatch.setattr(loaded, "load", lambda: functions)
    assert isinstance(driver.find(), Library)
    functions.devices = 0
    with pytest.raises(DriverError, match="shows this process no GPU"):
        driver.find()
