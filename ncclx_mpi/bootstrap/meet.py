"""What the bootstraps of unrelated processes share: from (rank, size, job name) to a membership."""

from __future__ import annotations

from ncclx_mpi.bootstrap import store
from ncclx_mpi.bootstrap.membership import Membership
from ncclx_mpi.bootstrap.watch import Watch
from transports.shm.arena import Arena


def meet(rank: int, size: int, job: str, kind: str, detail: str) -> Membership:
    """Meet the other ranks of this node under the name `job`, and watch over them.

    Raises
    ------
    TimeoutError, RuntimeError
        They did not come, or do not belong together.
    """
    name, token = store.place(job)
    arena = _serve(name, token, size) if rank == 0 else Arena.attach(store.fetch(name, token, rank, size))
    arena.join(rank)
    arena.wait_all_joined(store.join_timeout())
    watch = Watch(arena, rank)
    watch.start()
    return Membership(rank, size, arena, kind, detail, watch.close)


def _serve(name: str, token: str, size: int) -> Arena:
    if size == 1:
        return Arena.create(1)
    with store.listen(name, size) as server:
        arena = Arena.create(size)
        store.hand_out(server, token, size, arena.fd)
    return arena


def whole_number(environ_name: str, text: str) -> int:
    """The value of a launcher's variable."""
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"{environ_name}={text!r} is not a whole number; who set it is not the launcher") from None


def refuse_several_nodes(local: int, size: int, launcher: str) -> None:
    """The arena joins the ranks of one node only.

    Raises
    ------
    RuntimeError
        `local` of `size` ranks are here.
    """
    if local < size:
        raise RuntimeError(
            f"{launcher} started {size} ranks, {local} of them on this node; "
            "this version joins the ranks of one node only: start them all on one"
        )
