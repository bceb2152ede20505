"""Loops of a PTX text, and whether each can end: the check against waits whose load the compiler has moved out of the loop.

A loop is a natural one: a branch back to a block that dominates it, and all blocks between. What decides its exits is followed
back through the definitions inside the loop. It ends up at a load (the loop polls), at a register that depends on itself (it counts),
or at neither, and then nothing that the loop does can ever end it.
"""

from __future__ import annotations

import re
from enum import Enum

from numba_kernels.rows import NamedTuple


class Ending(Enum):
    """What ends a loop."""

    COUNTS = "counts"
    POLLS = "polls"
    NEVER = "never"


class _Statement(NamedTuple):
    guard: str
    opcode: str
    written: frozenset[str]
    read: frozenset[str]
    target: str


class _Block(NamedTuple):
    statements: list[_Statement]
    following: set[int]


_REGISTER = re.compile(r"%[a-z]+\w*(?:\.\w+)?")
_STATEMENT = re.compile(r"(?:@!?(?P<guard>%\w+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)", re.DOTALL)
_WITHOUT_RESULT = ("st", "bra", "ret", "exit", "bar", "barrier", "fence", "membar", "red", "trap", "nanosleep")
_POLLED = ("ld", "atom")
_CLOCKS = ("%clock", "%clock64", "%globaltimer")


def endings(text: str) -> list[Ending]:
    """What ends each loop of the kernel in a PTX text."""
    blocks = _blocks(text)
    dominators = _dominators(blocks)
    bodies: dict[int, set[int]] = {}
    for tail, block in enumerate(blocks):
        for head in block.following & dominators[tail]:
            bodies.setdefault(head, set()).update(_natural_loop(blocks, head, tail))
    return [_ending(blocks, body) for body in bodies.values()]


def _statement(text: str) -> _Statement:
    match = _STATEMENT.fullmatch(text)
    if match is None:
        return _Statement("", "", frozenset(), frozenset(), "")
    guard, opcode, operands = match["guard"] or "", match["opcode"].split(".")[0], match["operands"]
    if opcode == "bra":
        return _Statement(guard, opcode, frozenset(), frozenset(filter(None, [guard])), operands.split()[-1])
    result = ""
    if opcode not in _WITHOUT_RESULT:
        result, _, operands = operands.partition("}" if operands.startswith("{") else ",")
    written = frozenset(_REGISTER.findall(result))
    # Where it is not executed, what it would have written stays as it was.
    kept = written if guard else frozenset()
    return _Statement(guard, opcode, written, frozenset(_REGISTER.findall(operands)) | kept | frozenset(filter(None, [guard])), "")


def _blocks(text: str) -> list[_Block]:
    """The basic blocks of the entry, in the order of the text; each knows which may follow."""
    body = text[text.index("{", text.index(".entry")) + 1 : text.rindex("}")]
    body = re.sub(r"//[^\n]*", "", body)
    pieces = re.findall(r"\s*(?:[$\w]+:|[^;]+;)", re.sub(r"[{}]\s*\n", "\n", body))
    statements: list[list[_Statement]] = [[]]
    labels: dict[str, int] = {}
    for piece in pieces:
        stripped = re.sub(r"^[\s{}]+", "", piece)
        if stripped.endswith(":"):
            labels[stripped[:-1]] = len(statements)
            statements.append([])
        elif not stripped.startswith("."):
            statements[-1].append(_statement(stripped.rstrip(";").strip()))
            if statements[-1][-1].opcode in ("bra", "ret", "exit", "trap"):
                statements.append([])
    return [_Block(found, _following(found, index, labels, len(statements))) for index, found in enumerate(statements)]


def _following(statements: list[_Statement], index: int, labels: dict[str, int], count: int) -> set[int]:
    last = statements[-1] if statements else None
    following = {labels[last.target]} if last and last.opcode == "bra" else set()
    falls_through = last is None or bool(last.guard) or last.opcode not in ("bra", "ret", "exit", "trap")
    if falls_through and index + 1 < count:
        following.add(index + 1)
    return following


def _dominators(blocks: list[_Block]) -> list[set[int]]:
    """For each block, the blocks that every way to it passes."""
    every, reachable = set(range(len(blocks))), {0}
    while more := set().union(*(blocks[k].following for k in reachable)) - reachable:
        reachable |= more
    before: list[set[int]] = [{k for k in reachable if index in blocks[k].following} for index in range(len(blocks))]
    found = [{0}] + [set(every) for _ in blocks[1:]]
    changed = True
    while changed:
        changed = False
        for index in range(1, len(blocks)):
            now = {index} | (set.intersection(*[found[k] for k in before[index]]) if before[index] else set())
            changed |= now != found[index]
            found[index] = now
    return found


def _natural_loop(blocks: list[_Block], head: int, tail: int) -> set[int]:
    """All blocks from which `tail` is reached without passing `head`, and `head`."""
    body, open_ends = {head, tail}, [tail]
    while open_ends:
        at = open_ends.pop()
        if at == head:
            continue
        for index, block in enumerate(blocks):
            if at in block.following and index not in body:
                body.add(index)
                open_ends.append(index)
    return body


def _ending(blocks: list[_Block], body: set[int]) -> Ending:
    statements = [statement for index in body for statement in blocks[index].statements]
    deciding = {
        blocks[index].statements[-1].guard
        for index in body
        if blocks[index].following - body and blocks[index].statements[-1].guard
    }
    sources: dict[str, set[str]] = {}
    polled = set()
    for statement in statements:
        for register in statement.written:
            sources.setdefault(register, set()).update(statement.read)
            if statement.opcode in _POLLED or statement.read & set(_CLOCKS):
                polled.add(register)
    reached = _reached(deciding, sources)
    if any(register in _reached(sources[register], sources) for register in reached if register in sources):
        return Ending.COUNTS
    return Ending.POLLS if reached & polled else Ending.NEVER


def _reached(registers: set[str], sources: dict[str, set[str]]) -> set[str]:
    """These registers and all that they are made of, inside the loop."""
    found, open_ends = set(registers), list(registers)
    while open_ends:
        for register in sources.get(open_ends.pop(), set()) - found:
            found.add(register)
            open_ends.append(register)
    return found
