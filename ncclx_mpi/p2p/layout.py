"""Private structures of one rank's engine: 64-bit words that compiled code and Python both read."""

from __future__ import annotations

from numba_kernels.layout import words
from transports.messages import ENGINE_WORDS, PEER_WORDS

ENGINE = words(
    "Engine",
    # those of the transport that is compiled into the engine (inlined.py)
    f"own*{ENGINE_WORDS} "
    # where things are
    "arena rank nranks header control trace heap_first heap_last "
    # settings, fixed at start
    "eager_max eager_credit spins slice_ticks deadline_ticks doze_ticks ticks_per_us "
    # the lock of this process's engine, on its own line
    "| lock | "
    # matching
    "free_requests posted_count buckets wild_first wild_last unexpected_first unexpected_last unexpected_bytes "
    # traffic
    "peers queued active_first active_count starved_first starved_last bulk_free*4 "
    # plans of non-blocking collectives, stepped from every progress call through a function pointer
    "plan_step plan_state plan_count "
    # communicators with pending collectives on lines, stepped alike; what starts a persistent one
    "lines_step lines_first lines_start "
    # sends that were announced and are not complete: their receivers still need this rank
    "announced "
    # 1: a message has come that there is no memory for; it stays with its transport, which hands it up again (arrivals.py)
    "short_of_memory "
    # what progress does when there is something to do, by C address: the transport's half and the engine's (progress.py)
    "take_in move_on "
    # trace: the record of the operation that this rank is in
    "current "
    # the slow half of a wait, by C address, and the exception that a signal handler raised inside it (waiting.py)
    "wait_word parked*3 "
    # finished requests with their Python objects, to be used again (request_pool.py)
    "tickets lines_tickets object_requests "
    # requests that were given up, with what has to live until they are complete (keeping.py)
    "kept_first kept_count kept_limit "
    # a word by which peers make sure that a process is this rank; AUTO, PIPED or DIRECT; trials of the two by size (trial.py)
    "token copies trials*64",
)

PEER = words(
    "Peer",
    # those of the transport that reaches it
    f"own*{PEER_WORDS} | "
    # messages that wait for room; eager bytes sent, and of those the ones that found a receive; likewise of the peer's
    "queue_first queue_last sent seen_released released world "
    # the most bytes of an eager message; functions of the transport by C address, 0 for the one that is compiled in (inlined.py)
    "max_eager send credit |",
)

COMM = words(
    "Comm",
    # `handle`: address of its Python object
    "engine context rank size world local slot sequence broken plans handle scratch*64 "
    # what the ranks agreed on, and trials for each kind of collective (collectives/autotune.py)
    "| ways*776 "
    # the number of the forced algorithm of each kind of operation (algorithms.py)
    "| forced*32",
)

REQUEST = words(
    "Request",
    "kind state engine comm context offset peer source tag mode address nbytes "
    "message_bytes status_source status_tag error cancelled sequence "
    "next previous order_next order_previous queue_next action remote bulk chunk done_chunks chunks active_next "
    "payload detached direct matched announced "
    # transfers that both ranks copy (shared.py): address in the other process (0: by the pipe), bytes, number of the grant, trial
    "far wanted grant trial began "
    # messages of device arrays (device/landing.py): whether a receive asks where its message goes; the bytes at `address` through which
    # the message goes round (0: it lies there as a whole), and how many are there already (send), or were taken out again (receive)
    "landing window moved "
    # its Python object, where that lives as long as the request (request_pool.py), and, of a persistent one, what is sent or received;
    # the list of tickets to which it returns; what stands here outlives a use of the request
    "handle bound_kind bound_comm bound_address bound_nbytes bound_peer bound_tag bound_mode home "
    # changes with every use, so that who knows a request by its address can tell whether it is still the one that was meant
    "serial",
)

# kinds of request; a CONTROL request carries three words to a peer; a COLLECTIVE one has
# the number of the collective as its sequence, and the kind as its tag
SEND, RECEIVE, UNEXPECTED, CONTROL_MESSAGE, COLLECTIVE = 1, 2, 3, 4, 5
# states
PENDING, COMPLETE, FREE = 0, 1, 2
BUCKETS = 1024
BUCKET = words("Bucket", "posted_first posted_last unexpected_first unexpected_last")

ANY_SOURCE, ANY_TAG, PROC_NULL = -2, -1, -1

# modes of a send
STANDARD, SYNCHRONOUS, READY, BUFFERED = 0, 1, 2, 3

# what a compiled step returns
DONE, AGAIN, PEER_DEAD, DEADLINE, ABORTED, INTERRUPTED, BROKEN, REFUSED, PEER_LEFT, FAILED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 1000
"""INTERRUPTED: a signal handler raised; BROKEN: an earlier collective on the communicator was given up; REFUSED: the kernel copied
some of a buffer for a peer, and not the rest; PEER_LEFT: a rank has finalized, or freed the communicator, before a collective on it.
From FAILED on, the value less FAILED is an MPI error class."""

AUTO, PIPED, DIRECT = -1, 0, 1
"""How bulk data between private buffers moves: through the arena, or copied once by the kernel; AUTO: what is faster."""

ERR_TRUNCATE, ERR_OTHER = 14, 15

ON_DEVICE = -1
"""Address in the sender (``far``) of an array that no CPU can read; ``direct`` is where the arena says more of it."""
AS_POSTED, ASKING, ASKED = 0, 1, 2
"""A receive: goes where it was posted; will ask where to when its message is announced; has asked, and waits for the answer."""

# kinds of operation in trace records
OPERATIONS = (
    "none", "send", "recv", "isend", "irecv", "wait", "probe", "barrier", "bcast", "reduce", "allreduce", "gather", "scatter",
    "allgather", "alltoall", "reduce_scatter", "scan", "exscan", "plan", "mrecv", "sendrecv", "comm_create",
    "alltoallv_dynamic",
)  # fmt: skip
assert COMM.forced + 8 * len(OPERATIONS) <= COMM.total
