"""Functions of C by their address, and addresses of ours by name."""

from __future__ import annotations

from typing import Any

from numba_kernels.deferred import emitted

call_one = emitted("calls", "call_one")
"""``call_one(function, a)``: call a C function of a word, which returns one."""
call_two = emitted("calls", "call_two")
"""``call_two(function, a, b)``: call a C function of two words, which returns one."""
call_step = emitted("calls", "call_step")
"""``call_step(function, state)``: call a C function of a word, which returns nothing."""
call_reduce = emitted("calls", "call_reduce")
"""``call_reduce(function, out, low, high, count)``: call a reduction (:mod:`numba_kernels.reduce`)."""
call_three = emitted("calls", "call_three")
"""``call_three(function, a, b, c)``: call a C function of three words, which returns one."""
call_four = emitted("calls", "call_four")
"""``call_four(function, a, b, c, d)``: call a C function of four words, which returns one."""
call_five = emitted("calls", "call_five")
"""``call_five(function, a, b, c, d, e)``: call a C function of five words, which returns one."""
call_six = emitted("calls", "call_six")
"""``call_six(function, a, b, c, d, e, f)``: call a C function of six words, which returns one."""
call_seven = emitted("calls", "call_seven")
"""``call_seven(function, a, b, c, d, e, f, g)``: call a C function of seven words, which returns one."""
call_message = emitted("calls", "call_message")
"""``call_message(function, engine, peer, kind, context, tag, nbytes, first, second, third)``: call a function of a transport, or for one."""


def make_symbol(name: str) -> Any:
    """Return a function that gives the address which :mod:`numba_kernels.symbols` was told for `name`."""
    return emitted("calls", "make_symbol", name)
