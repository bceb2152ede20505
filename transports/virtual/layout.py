"""The memory of a simulated network, and where everything lies in it.

::

    | header | member of rank 0 .. n-1 | wires, n x n:  sent | packet 0 | packet 1 | ... |

A *wire* carries packets from one rank to one other. It has as many places as the sender has credits. The file is sparse: wires between
ranks that exchange nothing take no memory.

=================  ===========  ===========  ===============================================================================
word               written by   polled by    order
=================  ===========  ===========  ===============================================================================
``WIRE.sent``      sender       receiver     release after the packet: how many have been sent
``PACKET.full``    both         both         sender: 1, release after the packet; receiver: 0, release after it has been read
``MEMBER.silent``  a test       receivers    relaxed: nothing of this rank arrives any more
=================  ===========  ===========  ===============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_kernels.layout import words

MAGIC = 0x6E63636C782D6E65
VERSION = 4
PAGE = 4096

HEADER = words("Header", "magic version nranks credits nbytes delay_us jitter_us shuffled seed")
MEMBER = words("Member", "pid start_time left silent node forced table |")
"""What the network knows of a rank: its process, whether it finalized, whether its packets arrive, the number of its node,
and its settings, on which all have to agree (``ncclx_mpi.p2p.forced``); 0 = not said yet."""
WIRE = words("Wire", "sent |")
PACKET = words("Packet", "full sequence kind context tag nbytes first second | third length due | data")
PACKET_BYTES = PAGE
PAYLOAD_BYTES = PACKET_BYTES - PACKET.data
DEFAULT_CREDITS, MOST_CREDITS = 16, 256


@dataclass(frozen=True)
class NetworkPlan:
    """Byte offsets of every region in the memory of a network of `nranks` ranks with `credits` packets under way to a peer."""

    nranks: int
    credits: int

    def member(self, rank: int) -> int:
        at: int = PAGE + rank * MEMBER.total
        return at

    @property
    def wire_bytes(self) -> int:
        return PAGE + self.credits * PACKET_BYTES

    @property
    def wires(self) -> int:
        return (self.member(self.nranks) + PAGE - 1) // PAGE * PAGE

    def wire(self, source: int, target: int) -> int:
        """The wire that `source` sends on and `target` receives from."""
        return self.wires + (source * self.nranks + target) * self.wire_bytes

    @property
    def nbytes(self) -> int:
        return self.wire(self.nranks, 0)
