"""The order of memory on 64-bit Arm, in the assembly that its compiler emits here: no such machine is needed.

x86 keeps the order of plain loads and stores, so that a fence which is missing there shows in no run. What is compiled for
this machine as far as LLVM's intermediate code, with Arm's choice of instructions, goes through LLVM's Arm backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numba
import pytest
from llvmlite import binding, ir

from numba_kernels import atomics, memory
from numba_kernels.emit import atomics as emitted

TRIPLE = "aarch64-unknown-linux-gnu"


@pytest.fixture(autouse=True)
def choose_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have intrinsics choose as they do on Arm; what is compiled here is compiled anew, and not cached."""
    monkeypatch.setattr(emitted, "_X86", False)


@pytest.fixture(scope="module")
def machine() -> Iterator[Any]:
    """LLVM's backend for Arm, without extensions: 8.0, the oldest."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    yield binding.Target.from_triple(TRIPLE).create_target_machine(cpu="generic", opt=3)


def emit(machine: Any, code: str) -> list[str]:
    """Instructions of the first function of a module of LLVM's intermediate code."""
    code = re.sub(r"^target (triple|datalayout) = .*$", "", code, flags=re.MULTILINE)
    module = binding.parse_assembly(re.sub(r'"target-(cpu|features)"="[^"]*"', "", code))
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    first = machine.emit_assembly(module).split(".cfi_endproc")[0]
    return [line.strip().replace("\t", " ") for line in first.splitlines() if re.match(r"\t[a-z]", line)]


def compiled(machine: Any, function: Callable[..., Any], arguments: int) -> list[str]:
    """Instructions of a Python function of so many integers."""
    dispatcher = numba.njit(error_model="numpy", boundscheck=False)(function)
    dispatcher.compile(f"({', '.join(['int64'] * arguments)},)")
    (code,) = dispatcher.inspect_llvm().values()
    return emit(machine, code)


def alone(machine: Any, intrinsic: Any) -> list[str]:
    """Instructions of an intrinsic without arguments that this machine has no instruction for."""

    class Context:
        def get_dummy_value(self) -> Any:
            return ir.Constant(ir.IntType(64), 0)

    signature, generate = intrinsic.real._defn(None)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.IntType(64), []), "alone")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(generate(Context(), builder, signature, ()))
    return emit(machine, str(module))


def names(instructions: list[str]) -> list[str]:
    return [line.split()[0] for line in instructions]


def wait_and_read(word: int, data: int) -> int:
    while atomics.load_acquire(word) < 3:
        pass
    return atomics.load64(data)


def write_and_announce(word: int, data: int) -> None:
    atomics.store64(data, 7)
    atomics.store_release(word, 1)


def relaxed(word: int, other: int) -> None:
    atomics.store_relaxed(other, atomics.load_relaxed(word))


def stream_and_announce(target: int, source: int, word: int) -> None:
    memory.stream_line(target, source)
    atomics.publish_streamed()
    atomics.store_release(word, 1)


def fence_between(first: int, second: int) -> int:
    atomics.store64(first, 1)
    atomics.full_fence()
    return atomics.load64(second)


def test_an_acquire_comes_before_what_it_guards(machine: Any) -> None:
    found = names(compiled(machine, wait_and_read, 2))
    assert "ldar" in found and "ldr" in found[found.index("ldar") :]


def test_a_release_comes_after_what_it_announces(machine: Any) -> None:
    found = names(compiled(machine, write_and_announce, 2))
    assert found.index("str") < found.index("stlr")


def test_relaxed_words_are_ordered_by_nothing(machine: Any) -> None:
    found = names(compiled(machine, relaxed, 2))
    assert {"ldr", "str"} <= set(found) and not {"ldar", "stlr", "dmb", "ldaxr", "stlxr"} & set(found)


def test_a_fence_stands_between_streamed_stores_and_their_release(machine: Any) -> None:
    """``stlr`` alone does not order ``stnp`` before it."""
    found = compiled(machine, stream_and_announce, 3)
    order = names(found)
    assert max(index for index, name in enumerate(order) if name == "stnp") < found.index("dmb ish") < order.index("stlr")


def test_a_streamed_block_ends_in_a_fence(machine: Any) -> None:
    found = compiled(machine, memory.stream.py_func, 3)
    order = names(found)
    last_store = max(index for index, name in enumerate(order) if name in ("stnp", "bl"))
    assert "stnp" in order and "dmb ish" in found[last_store:]


def test_a_full_fence(machine: Any) -> None:
    found = compiled(machine, fence_between, 2)
    order = names(found)
    assert order.index("str") < found.index("dmb ish") < order.index("ldr")


@pytest.mark.parametrize("intrinsic", [atomics.fetch_add, atomics.exchange])
def test_read_modify_write(machine: Any, intrinsic: Any) -> None:
    def change(word: int, value: int) -> int:
        return intrinsic(word, value)  # type: ignore[no-any-return]

    assert {"ldaxr", "stlxr"} <= set(names(compiled(machine, change, 2)))


def test_compare_exchange(machine: Any) -> None:
    def change(word: int, expected: int, new: int) -> int:
        return atomics.compare_exchange(word, expected, new)  # type: ignore[no-any-return]

    assert {"ldaxr", "stlxr"} <= set(names(compiled(machine, change, 3)))


def test_a_spin_loop_gives_way(machine: Any) -> None:
    assert "yield" in names(alone(machine, atomics.pause))


def test_time_is_read_from_the_counter_that_users_may_read(machine: Any) -> None:
    """The cycle counter proper traps outside of the kernel."""
    assert any(line.startswith("mrs") and "CNTVCT_EL0" in line.upper() for line in alone(machine, atomics.ticks))
