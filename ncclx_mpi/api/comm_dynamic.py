"""All-to-all with counts that are read when the operation executes: NCCLX's AllToAllvDynamic (arXiv:2510.20171), on MPI's terms.

A router decides, token by token, which rank each goes to. With ``Alltoallv`` its counts must be known, on both sides, before the
call. Here they stay in the arrays in which the router leaves them, receivers give room instead of counts, and ranks find out in
the operation itself what moves. *Dispatch* takes segments to ranks, *combine* takes them back::

    rank 0 sends          splits 2 4 4 2        indices 0 1 | 0 2 3        blocklengths 2 | 3
      aabbbbccccdd  --->  rank 0, area of 0:  aabbbb......        rank 1, area of 0:  aa....ccccdd
                          combine:  aabbbb from rank 0, ....ccccdd from rank 1  --->  aabbbbccccdd

How the bytes are found is in :mod:`numba_kernels.alltoallv.plan`, how they travel in :mod:`ncclx_mpi.extensions.alltoallv_dynamic.on_host`,
and on GPUs in :mod:`ncclx_mpi.extensions.alltoallv_dynamic.device.execution`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.typing import Buffer, BufSpecV

if TYPE_CHECKING:
    from ncclx_mpi.api.communicator import CommState
    from ncclx_mpi.api.dynamic_request import DynamicRequest
    from ncclx_mpi.api.request import Request


class DynamicAlltoall:
    """Methods of Intracomm: all-to-all with counts that are read when it executes."""

    __slots__ = ()
    _state: CommState

    def Alltoallv_dynamic(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        splits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        allsplits: Buffer | None = None,
    ) -> None:
        """Send each rank its segments of a buffer, whose lengths are read when the operation executes.

        The send buffer is cut into ``n`` segments by `splits`; ``n`` is the same on all ranks. Which segments go to which rank,
        and where they arrive, depends on the form:

        *plain*: `sendbuf` with counts, ``[array, capacities]`` or ``[array, (capacities, displacements)]``, and ``n`` the number
        of ranks. Segment ``r`` begins at displacement ``r`` and goes to rank ``r``. It arrives at the begin of the area of its
        sender.

        *split*: `sendbuf` without counts, no `indices`, and ``n`` is ``k`` times the number of ranks. Segments stand one
        after another; rank ``r`` gets segments ``r * k`` to ``(r + 1) * k - 1``, one after another from the begin of the area of
        their sender.

        *indices*: rank ``r`` gets the segments listed in the ``r``-th block of `indices`. They arrive at the offset that they
        have in the send buffer, so that the area of the sender has a hole wherever a segment is missing; holes keep what was in
        them. A segment may go to several ranks. Within a block neither order nor repetition matters.

        Parameters
        ----------
        sendbuf
            Elements of a contiguous datatype, in one of the forms above.
        recvbuf
            ``[array, capacities]`` or ``[array, (capacities, displacements)]``, one for each source: the most elements that may
            arrive from it, and where its area begins; an array alone has equal areas. Of the same element size as `sendbuf`, and
            apart from it.
        splits : integers, shape (n,)
            Length of each segment, in elements of `sendbuf`; zero is fine.
        indices : integers, shape (m,), optional
            Numbers of segments, the block of rank 0 first; ``m`` may differ between ranks, and the blocks need not use all of it.
        blocklengths : integers, shape (ranks,), optional
            How many of the indices belong to each rank. Given if and only if `indices` is.
        allsplits : int64, shape (ranks, n), optional
            Receives the split lengths of all ranks: what is in the areas, and what :meth:`Alltoallv_dynamic_combine` takes.

        Raises
        ------
        Exception
            ERR_TRUNCATE: segments do not fit where they should go or come from, or a split length, an index or a block length is
            out of range. The pair of ranks that it concerns has moved nothing, all others everything; the error says which pair,
            how many elements it needs and how many there is room for. Both of its ranks raise it. The communicator stays usable.
            ERR_TYPE: elements of different sizes, or a datatype with gaps. ERR_PROC_FAILED: a rank died.
        TypeError, ValueError, BufferError
            What is passed cannot be used, on this rank: nothing was sent.

        Notes
        -----
        Each array may be the host's or a GPU's. If all of all ranks are those of GPUs of one node, kernels read the metadata there and
        move the segments; else what is a GPU's is copied through the host. Either way the call comes after what the arrays' streams
        hold, and is complete when all has arrived.

        Metadata (`splits`, `indices`, `blocklengths`) are arrays of any integer type, aligned. They are read when the operation
        executes: in this call, or whenever a persistent request is started, not when it was made. Ranks that pass different ``n``
        get ERR_TRUNCATE, and the communicator is broken then.

        Time: one alltoall of 56 + 8 n bytes, then one alltoallv of what is really there. Segments that are neighbours at the sender
        travel as one piece.
        """
        _calls().run(self._state, _calls().dispatch, sendbuf, recvbuf, splits, indices, blocklengths, allsplits)

    def Ialltoallv_dynamic(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        splits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        allsplits: Buffer | None = None,
    ) -> Request:
        """Nonblocking: as :meth:`Alltoallv_dynamic`; everything passed is borrowed until the request is complete."""
        request: Request = _calls().start(
            self._state, _calls().dispatch, sendbuf, recvbuf, splits, indices, blocklengths, allsplits
        )
        return request

    def Alltoallv_dynamic_init(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        splits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        allsplits: Buffer | None = None,
        info: Info = INFO_NULL,
    ) -> DynamicRequest:
        """Persistent: as :meth:`Alltoallv_dynamic`; each ``Start`` reads `splits`, `indices` and `blocklengths` anew.

        Everything passed is borrowed while the request lives; between ``Wait`` and ``Start`` its contents are the program's. A
        start that ended in ERR_TRUNCATE leaves the request ready for the next one.
        """
        operands = _calls().dispatch(self._state, sendbuf, recvbuf, splits, indices, blocklengths, allsplits)
        request: DynamicRequest = _calls().persistent(self._state, operands)
        return request

    def Alltoallv_dynamic_combine(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        allsplits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
    ) -> None:
        """Send segments back to the ranks that they came from: the inverse of :meth:`Alltoallv_dynamic` but for *plain*.

        Every segment goes from where dispatch put it to where dispatch took it from, so that dispatch and combine give back the
        input where each segment went to one rank. (The inverse of the *plain* form is the plain form, with the column of this
        rank in `allsplits` as its `splits`.)

        Parameters
        ----------
        sendbuf
            The areas that dispatch filled, as it had them in its `recvbuf`: ``[array, capacities]``, ``[array, (capacities,
            displacements)]``, or an array of equal areas.
        recvbuf
            An array alone: all ranks' segments return to it, at the offsets that they had in dispatch's `sendbuf`. With
            capacities, ``[array, (capacities, displacements)]``: each rank's segments return to an area of their own, at those
            offsets in it, which is for segments that several ranks had.
        allsplits : integers, shape (ranks, n)
            The split lengths of all ranks, as dispatch returned them.
        indices : integers, shape (m,), optional
            Numbers, in the rows of `allsplits`, of the segments that this rank sends back: first those for rank 0. Without them,
            the segments ``r * k`` to ``(r + 1) * k - 1`` of each row, for this rank ``r`` and ``k = n / ranks``: what the form
            *split* brought.
        blocklengths : integers, shape (ranks,), optional
            How many of the indices belong to each rank. Given if and only if `indices` is.

        Raises
        ------
        Exception
            As :meth:`Alltoallv_dynamic`.
        """
        _calls().run(self._state, _calls().combine, sendbuf, recvbuf, allsplits, indices, blocklengths)

    def Ialltoallv_dynamic_combine(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        allsplits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
    ) -> Request:
        """Nonblocking: as :meth:`Alltoallv_dynamic_combine`; everything passed is borrowed until the request is complete."""
        request: Request = _calls().start(self._state, _calls().combine, sendbuf, recvbuf, allsplits, indices, blocklengths)
        return request

    def Alltoallv_dynamic_combine_init(
        self,
        sendbuf: BufSpecV,
        recvbuf: BufSpecV,
        allsplits: Buffer,
        indices: Buffer | None = None,
        blocklengths: Buffer | None = None,
        info: Info = INFO_NULL,
    ) -> DynamicRequest:
        """Persistent: as :meth:`Alltoallv_dynamic_combine`; each ``Start`` reads `allsplits`, `indices` and `blocklengths` anew."""
        operands = _calls().combine(self._state, sendbuf, recvbuf, allsplits, indices, blocklengths)
        request: DynamicRequest = _calls().persistent(self._state, operands)
        return request


@functools.cache
def _calls() -> Any:
    """What carries calls out, imported by the first one."""
    from ncclx_mpi.api import dynamic_calls

    return dynamic_calls
