# run by: run_datagram_tests.py
"""Large messages: announced, asked for by the receiver, and sent in parts."""

from datagram_messages import DATA, LINK, PACKET, PAYLOAD_BYTES, STATE, credit, hand_up, next_packet, send

from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_three
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD, words
from numba_kernels.memory import copy
from transports.messages import REQUEST

TRANSFER = words("Transfer", "remote wanted next")  # the beginning of a request is ours
PACKETS_A_TURN = 64


@kernel("int64(int64, int64, int64)", is_entry=True)
def offer(engine, link, request):
    """Nothing has to be said in an announcement."""
    return 1


@kernel("int64(int64, int64, int64)", is_entry=True)
def fetch(engine, link, receive):
    """A receive has met an announcement: ask for as many bytes as its buffer takes. 1 if that is none, else 0: they are to come."""
    wanted = min(load64(receive + REQUEST.message_bytes), load64(receive + REQUEST.nbytes))
    if wanted == 0:
        return 1
    store64(receive + TRANSFER.wanted, wanted)
    store64(receive + REQUEST.second, receive)
    store64(receive + REQUEST.third, wanted)
    call_three(load64(load64(link + LINK.state) + STATE.clear_to_send), engine, link, receive)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def serve(engine, link, request):
    """The receiver has asked for its bytes: they are sent behind those of earlier messages to that peer."""
    store64(request + TRANSFER.remote, load64(request + REQUEST.second))
    store64(request + TRANSFER.wanted, load64(request + REQUEST.third))
    store64(request + TRANSFER.next, 0)
    store64(request + REQUEST.passed, 0)
    if load64(link + LINK.first_send) == 0:
        store64(link + LINK.first_send, request)
    else:
        store64(load64(link + LINK.last_send) + TRANSFER.next, request)
    store64(link + LINK.last_send, request)
    return 0


@kernel("int64(int64, int64, int64)", is_entry=True)
def revoke(engine, link, receive):
    """A receive is given up: nobody but `land` writes to its buffer, and it sees that there are no bytes any more."""
    return 1


@kernel("void(int64)", is_entry=True)
def poll(state):
    """Hand up what has come, tell what is owed, and move large messages on."""
    for _ in range(PACKETS_A_TURN):
        packet = next_packet(state)
        if packet == 0:
            break
        if load64(packet + PACKET.kind) == DATA:
            land(state, packet)
        elif hand_up(state, packet) == 0:
            break
        store64(state + STATE.is_held, 0)
    step(state)


@kernel("void(int64, int64)")
def land(state, packet):
    """Copy a part to its place, as far as the buffer goes."""
    receive, offset = load64(packet + PACKET.context), load64(packet + PACKET.tag)
    length, room = load64(packet + PACKET.nbytes), load64(receive + REQUEST.nbytes)
    if room > offset:
        copy(load64(receive + REQUEST.address) + offset, packet + PACKET.data, min(length, room - offset))
    store64(receive + REQUEST.passed, offset + length)
    if offset + length == load64(receive + TRANSFER.wanted):
        call_three(load64(state + STATE.finish), load64(state + STATE.engine), receive, 0)


@kernel("void(int64)", is_entry=True)
def step(state):
    """Send to each peer what there is room for."""
    engine = load64(state + STATE.engine)
    for rank in range(load64(state + STATE.count)):
        link = load64(load64(state + STATE.links) + WORD * rank)
        if link != 0:
            if load64(link + LINK.is_owed) != 0:
                credit(engine, link, load64(link + LINK.released))
            request = load64(link + LINK.first_send)
            while request != 0 and send_parts(engine, link, request) != 0:
                store64(link + LINK.first_send, load64(request + TRANSFER.next))
                call_three(load64(state + STATE.finish), engine, request, 0)
                request = load64(link + LINK.first_send)


@kernel("int64(int64, int64, int64)")
def send_parts(engine, link, request):
    """Send parts of a message: 1 when all are sent, 0 if there is no more room."""
    address, remote = load64(request + REQUEST.address), load64(request + TRANSFER.remote)
    wanted, offset = load64(request + TRANSFER.wanted), load64(request + REQUEST.passed)
    while offset < wanted:
        length = min(PAYLOAD_BYTES, wanted - offset)
        if send(engine, link, DATA, remote, offset, length, address + offset, 0, 0) == 0:
            return 0
        offset += length
        store64(request + REQUEST.passed, offset)
    return 1
