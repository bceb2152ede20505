"""How two groups get an intercommunicator, and what is made of one: who is in which group, and the contexts that all ranks agree on.

An intercommunicator has two native ones. Its messages go through one whose ranks are those of the other group, so that whatever moves
messages needs to know nothing of groups; its collectives go through one of all ranks, those of the group with the lowest world rank
first. The first rank of that one makes the contexts of both.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ncclx_mpi import collectives, errors
from ncclx_mpi.api import communicator
from ncclx_mpi.api.communicator import CommState, Words
from ncclx_mpi.api.intergroup import Intergroup
from ncclx_mpi.collectives import prepare
from ncclx_mpi.constants import UNDEFINED
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.guests import Identity
from numba_kernels.layout import WORD

if TYPE_CHECKING:
    from ncclx_mpi.api.errhandler import Errhandler

Contexts = tuple[int, int]
"""Of messages, and of collectives."""

_OFFSET = 3
_TAG, _FROM_GROUPS_TAG = 1 << 44, 1 << 45
"""Above those of the other ways to make communicators, which travel in the same message space."""
_HEAD = 4
"""Words before the ranks of a group, two for each: an error class, two contexts, and how many ranks there are."""


def new_contexts(engine: Engine) -> Contexts:
    """Contexts for a new intercommunicator."""
    return communicator.new_context(engine), communicator.new_context(engine)


def fill(
    state: CommState, engine: Engine, contexts: Sequence[int], mine: Sequence[int], theirs: Sequence[int], errhandler: Errhandler
) -> CommState:
    """Make a state that of the intercommunicator between two groups of world ranks."""
    messages, together = (int(context) for context in contexts)
    native = engine.new_comm(messages, theirs, rank=list(mine).index(engine.rank))
    everyone = engine.new_comm(together, in_order(engine, mine, theirs))
    return state.fill(native, errhandler, intergroup=Intergroup(everyone, mine, theirs))


def fill_alike(state: CommState, groups: Intergroup, contexts: Words, errhandler: Errhandler) -> None:
    """Make a state that of another intercommunicator between the same groups."""
    fill(state, groups.native.engine, contexts.tolist(), groups.mine, groups.theirs, errhandler)


def in_order(engine: Engine, mine: Sequence[int], theirs: Sequence[int]) -> list[int]:
    """The ranks of both groups, those of the one with the lowest world rank first; where they are of several jobs, by these first."""
    return [*mine, *theirs] if _lowest(engine, mine) < _lowest(engine, theirs) else [*theirs, *mine]


def _lowest(engine: Engine, ranks: Sequence[int]) -> Identity:
    return min(map(engine.guests.identity, ranks))


# Of two groups ----------------------------------------------------------------------------------------------------


def connect(
    local: NativeComm, leader: int, peer: Callable[[], NativeComm], remote_leader: int, tag: int
) -> tuple[Contexts, Sequence[int]]:
    """Return the contexts of a new intercommunicator, and the world ranks of the other group. Collective over both.

    The leaders tell each other their groups through `peer`, which only they look at, and then their own groups what came of it.

    Raises
    ------
    Exception
        What goes wrong between the leaders, on all ranks of the group. ERR_COMM: the groups overlap.
    """
    head, others, failure = array("q", [0] * _HEAD), array("q"), None
    if local.rank == leader:
        try:
            head, others = _exchange_groups(local, peer(), remote_leader, tag)
        except errors.Exception as error:
            failure, head[0] = error, error.Get_error_class()
    _tell(local, head, leader)
    if failure is not None:
        raise failure
    if head[0]:
        errors.fail(
            head[0],
            f"rank {local.rank}: Create_intercomm: the leader, rank {leader}, could not agree with the remote leader; see there",
        )
    if local.rank != leader:
        others = array("q", [0] * (2 * head[_HEAD - 1]))
    _tell(local, others, leader)
    return (head[1], head[2]), _found(local.engine, others)


def _where(words: array[int]) -> tuple[int, int]:
    """Address and bytes of words, of which there stay as many."""
    address, number = words.buffer_info()
    return address, number * WORD


def _tell(local: NativeComm, words: array[int], leader: int) -> None:
    """Let a group know words of its leader; one that is alone knows them, and needs no plan for it."""
    if local.size > 1:
        collectives.bcast(local, *_where(words), leader)


def _found(engine: Engine, identities: array[int]) -> list[int]:
    pairs = zip(identities[::2], identities[1::2], strict=True)
    return [engine.guests.find(Identity(*pair)) for pair in pairs]


def _exchange_groups(local: NativeComm, peer: NativeComm, remote_leader: int, tag: int) -> tuple[array[int], array[int]]:
    """Tell the other leader this group, and hear what to tell it: no error, the contexts of both, and the other group."""
    engine, mine = local.engine, local.world_ranks
    if not 0 <= remote_leader < peer.size:
        errors.fail(
            errors.ERR_RANK,
            f"rank {local.rank}: Create_intercomm: remote leader {remote_leader} is no rank of the peer communicator of {peer.size}",
        )
    identities = (word for rank in mine for word in engine.guests.identity(rank))
    own = array("q", [0, *new_contexts(engine), len(mine), *identities])
    sent = engine.start_send(peer, *_where(own), remote_leader, _TAG + tag, 0, _OFFSET)
    try:
        coming = engine.wait_probe(peer, remote_leader, _TAG + tag, _OFFSET, "Create_intercomm")
    except BaseException:
        engine.withdraw(sent, own)
        raise
    its = array("q", [0] * (coming.nbytes // WORD))
    received = engine.start_recv(peer, *_where(its), remote_leader, _TAG + tag, _OFFSET)
    engine.wait_all([received, sent], "Create_intercomm", (own, its))
    others = its[_HEAD:]
    theirs = _found(engine, others)
    shared = sorted(set(mine) & set(theirs))
    if shared:
        errors.fail(
            errors.ERR_COMM,
            f"rank {local.rank}: Create_intercomm: world ranks {shared} are in both groups; they must have none in common",
        )
    head = (own if _lowest(engine, mine) < _lowest(engine, theirs) else its)[:_HEAD]
    head[_HEAD - 1] = len(theirs)
    return head, others


def announce(world: NativeComm, leader: int, members: Sequence[int], tag: int) -> Contexts:
    """Return the contexts that `leader` makes for `members`, all world ranks; these alone take part."""
    engine, tag = world.engine, _FROM_GROUPS_TAG | tag
    pair = array("q", new_contexts(engine) if engine.rank == leader else (0, 0))
    if engine.rank == leader:
        others = [rank for rank in members if rank != leader]
        requests = [engine.start_send(world, *_where(pair), rank, tag, 0, _OFFSET) for rank in others]
    else:
        requests = [engine.start_recv(world, *_where(pair), leader, tag, _OFFSET)]
    engine.wait_all(requests, "Create_from_groups", pair)
    return pair[0], pair[1]


# Of an intercommunicator ------------------------------------------------------------------------------------------


def duplicate(groups: Intergroup) -> Words:
    """Return contexts for the same groups. Collective over both."""
    pair = _contexts_of_first(groups)
    collectives.bcast(groups.native, pair.buffer_info()[0], WORD * len(pair), 0)
    return pair


def start_duplicate(groups: Intergroup, then: Callable[[Words], None]) -> tuple[collectives.Collective, Callable[[], None]]:
    """Start making contexts for the same groups; returns the collective, and what to do after it."""
    pair = _contexts_of_first(groups)
    started = prepare.bcast(groups.native, pair.buffer_info()[0], WORD * len(pair), 0).start()
    started.owner = pair  # the program may forget the request; what is on its way then still lands here
    return started, functools.partial(then, pair)


def _contexts_of_first(groups: Intergroup) -> Words:
    engine = groups.native.engine
    return array("q", new_contexts(engine) if groups.native.rank == 0 else (0, 0))


def split(groups: Intergroup, color: int, key: int) -> tuple[Contexts, list[int], list[int]] | None:
    """Return contexts and groups of world ranks for the ranks of each color, those of each side in the order of (key, old rank).

    None for color UNDEFINED, and where one of the sides has no ranks of a color. Collective over both groups.
    """
    native, sides = groups.native, groups.sides
    table = collectives.gather_words(native, color, key)
    mine, theirs = (sorted((rank for rank in side if table[rank][0] == color), key=lambda rank: table[rank][1]) for side in sides)
    leader = min([*mine, *theirs]) if color != UNDEFINED and mine and theirs else -1
    contexts = collectives.gather_words(native, *(new_contexts(native.engine) if leader == native.rank else (0, 0)))
    if leader < 0:
        return None
    first, second = contexts[leader]
    ranks = native.world_ranks
    return (first, second), [ranks[rank] for rank in mine], [ranks[rank] for rank in theirs]


def merge(groups: Intergroup, high: bool) -> NativeComm:
    """Make a communicator of both groups, the one that is not `high` first. Collective over both.

    Raises
    ------
    Exception
        ERR_ARG, on all ranks: those of one group do not say the same.
    """
    native = groups.native
    highs = [row[0] for row in collectives.gather_words(native, int(high))]
    sides = sorted(groups.sides, key=lambda side: side.start)
    for side in sides:
        if len({highs[rank] for rank in side}) > 1:
            errors.fail(
                errors.ERR_ARG,
                f"rank {groups.sides.place(native.rank)}: Merge: the ranks of one group do not all pass the same value of high: "
                f"{[bool(highs[rank]) for rank in side]}",
            )
    order = [rank for side in sorted(sides, key=lambda side: highs[side.start]) for rank in side]
    made = communicator.agree(native, order)
    assert made is not None
    return made


def own_side(groups: Intergroup) -> NativeComm:
    """Make a communicator of the own group. Collective over both."""
    made = communicator.split(groups.native, groups.sides.mine.start, 0)
    assert made is not None
    return made
