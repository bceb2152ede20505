"""Private structures of one rank's engine: 64-bit words that compiled code and Python both read."""

from __future__ import annotations

from numba_kernels.layout import words
from transports.messages import ENGINE_WORDS, PEER_WORDS, REQUEST_FIELDS

ENGINE = words(
    "Engine",
    # those of the transport that is compiled into the engine (inlined.py)
    f"own*{ENGINE_WORDS} "
    # where things are: of those in the arena, words of deaths and aborts, the number of trace records and their beginning
    "rank nranks death abort records trace "
    # settings, fixed at start
    "eager_max eager_credit spins slice_ticks deadline_ticks doze_ticks ticks_per_us "
    # the lock of this process's engine, on its own line
    "| lock | "
    # matching; `posted_count` receives have waited, and `unposted` do no more
    "free_requests posted_count unposted buckets wild_first wild_last unexpected_first unexpected_last unexpected_bytes "
    # traffic
    "peers queued "
    # plans of non-blocking collectives, stepped from every progress call through a function pointer
    "plan_step plan_state plan_count "
    # communicators with pending collectives on lines, stepped alike; what starts a persistent one
    "lines_step lines_first lines_start "
    # sends that were announced and are not complete: their receivers still need this rank
    "announced "
    # 1: a message has come that there is no memory for; it stays with its transport, which hands it up again (arrivals.py)
    "short_of_memory "
    # what progress does when there is something to do, by C address: take in what has come, send what waited for room, step transfers;
    # and have a transport that is not compiled in hand up what has come, 0 where there is none; what that one is polled with
    "take_in move_on step poll_other other_state "
    # what arms such a transport, by C address; where it has an event, what dozes in a wait, and what `poll` looks at then; how often
    # progress has looked at the network (sleeping.py)
    "arm_other doze events looks "
    # trace: the record of the operation that this rank is in; when that began its last wait for what peers write one after the other
    "current waited_from "
    # the slow half of a wait, by C address, and the exception that a signal handler raised inside it (waiting.py); of collectives, what
    # says whether a rank has left a communicator with a slot
    "wait_word parked*3 peer_left "
    # finished requests with their Python objects, to be used again (request_pool.py)
    "tickets lines_tickets object_requests "
    # a thread takes what comes in one message space: whether it sleeps, and the event that wakes it; the first of the spaces that compiled
    # code looks at before (alarm.py)
    "sleeper alarm watched "
    # what wakes the thread that makes progress, by C address, while it sleeps, and the event that does (stirring.py)
    "rouse bell "
    # requests that were given up, with what has to live until they are complete (keeping.py)
    "kept_first kept_count kept_limit "
    # contexts of communicators that were revoked: a ring of them, how many have come, and how many of those Python has looked at; what
    # looks, a Python object; how many communicators of this process are not to be waited for any more; deaths that were acknowledged
    # (revoking.py)
    "revoked revoked_count heeded heed ended acknowledged "
    # the communicators that this rank has left, and how many that were; what takes the answer of another rank that was asked, by C
    # address (leaving.py)
    "left left_count take_answer",
)

PEER = words(
    "Peer",
    # those of the transport that reaches it
    f"own*{PEER_WORDS} | "
    # messages that wait for room; eager bytes that are sent, or wait for room, with EAGER_COST for each message, and of those the ones that
    # found a receive; likewise of the peer's
    "queue_first queue_last sent seen_released released world "
    # the most bytes of an eager message; functions of the transport by C address, 0 for the one that is compiled in (inlined.py)
    "max_eager send credit offer fetch serve revoke "
    # 1: it has left the job, and nothing comes from it any more (leaving.py)
    "gone |",
)

WATCHED = words("WatchedSpace", "next context local take kept served |")
"""A message space whose messages compiled code looks at when they come (alarm.py). `local`: the rank of each world rank; `take`: what looks,
by C address; `kept`, `served`: for each rank, how many of its messages were left to the thread, and how many of those that has done with."""

LEFT = words("Left", "context calls word")
"""A communicator that this rank has left: after how many collectives, and what others are told (leaving.py)."""

COMM = words(
    "Comm",
    # `handle`: address of its Python object
    # `ended`: 1 once nobody is to wait in it any more (revoking.py); `ready`: plans of blocking calls (collectives/ready.py), 0 for none;
    # `edges`: those of its topology (collectives/neighborhood.py), 0 before the first neighbourhood collective
    "engine context rank size world local slot sequence broken plans handle ended ready edges scratch*64 "
    # what the ranks agreed on, and trials for each kind of collective (collectives/cma_tuning.py)
    "| ways*968 "
    # the number of the forced algorithm of each kind of operation (algorithms.py)
    "| forced*32",
)

REQUEST = words(
    "Request",
    # what a transport sees of it, its own words first
    f"{REQUEST_FIELDS} "
    "kind state engine comm context offset peer source tag mode status_source status_tag cancelled sequence "
    "next previous order_next order_previous queue_next action remote payload detached "
    # an RTS of a send has gone out; its CTS has come, or that of a receive was sent
    "announced granted "
    # of messages of device arrays (device/landing.py): whether a receive asks where its message goes
    "landing "
    # where a receive of one word lands (rma/asking.py); of a message of elements with gaps, its landing (gaps.py)
    "answer gaps "
    # its Python object, where that lives as long as the request (request_pool.py), and, of a persistent one, what is sent or received;
    # the list of tickets to which it returns; what stands here outlives a use of the request
    "handle bound_kind bound_comm bound_address bound_nbytes bound_peer bound_tag bound_mode bound_gaps home "
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

ERR_TRUNCATE = 14
TO_CONFIRM = 32
"""Action of a send, beside the kinds of messages: as EAGER, with the address of the request in front of the payload, to which the receiver
returns an ATS when a receive has met it. `CONFIRMED`, which no context has, tells it from an EAGER message."""
CONFIRMED = -(1 << 63)
EAGER_COST = 64
"""What an eager message counts beside its payload, where bytes are counted that a receiver may hold unasked: its record takes some, too."""
AS_POSTED, ASKING, ASKED = 0, 1, 2
"""A receive: goes where it was posted; will ask where to when its message is announced; has asked, and waits for the answer."""

TRACE = words("Trace", "kind context peer tag nbytes start end sequence")
"""What an engine notes of an operation, for observers: record k is at ``trace + k % TRACE_RECORDS * TRACE.total``."""
TRACE_RECORDS = 1024

# kinds of operation in trace records
OPERATIONS = (
    "none", "send", "recv", "isend", "irecv", "wait", "probe", "barrier", "bcast", "reduce", "allreduce", "gather", "scatter",
    "allgather", "alltoall", "reduce_scatter", "scan", "exscan", "plan", "mrecv", "sendrecv", "comm_create",
    "alltoallv_dynamic", "neighbor_allgather", "neighbor_alltoall",
)  # fmt: skip
assert COMM.forced + 8 * len(OPERATIONS) <= COMM.total
