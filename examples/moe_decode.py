"""Decoding with a mixture of experts: each step, every token goes to its two best experts and back. CuPy where there is a GPU, else NumPy.

A router decides which experts a token goes to, so how many tokens move between two ranks is known only where the router ran: on the GPU.
``Alltoallv_dynamic`` takes the array in which that stands, as it is when the operation executes: no count is exchanged beforehand,
nothing is padded, and the requests are made once for all steps. ``Alltoallv_dynamic_combine`` takes the results back. On a GPU all steps
are enqueued in one stream, and the host waits for nothing before the end. At the end rank 0 compares all tokens, bit by bit, with
what one process computes alone.

ncclx run -n 4 examples/moe_decode.py [tokens] [hidden] [steps]
"""

import sys

import numpy as np
from mpi4py import MPI

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
except (ImportError, RuntimeError):  # no CuPy, or no GPU
    xp = np

EXPERTS, TOP = 8, 2


class Router:
    """Chooses experts for tokens, with weights: some experts are much more popular than others, and that changes from step to step."""

    def __init__(self, tokens: int, steps: int) -> None:
        generator = np.random.default_rng(2026)
        liking = generator.normal(size=(steps, tokens, EXPERTS)) + 2 * generator.normal(size=(steps, 1, EXPERTS))
        self.liking = xp.asarray(liking)

    def choose(self, step: int, tokens: slice):
        """Return the best experts of each token, best first, and their weights."""
        liking = self.liking[step, tokens]
        experts = xp.argsort(-liking, axis=1)[:, :TOP]
        weights = xp.exp(xp.take_along_axis(liking, experts, axis=1))
        return experts, weights / weights.sum(axis=1, keepdims=True)


class Experts:
    """All experts; a rank uses its own."""

    def __init__(self, hidden: int) -> None:
        generator = np.random.default_rng(7)
        self.scale, self.shift = (xp.asarray(generator.normal(size=(EXPERTS, hidden))) for _ in range(2))

    def think(self, states, which):
        """Return what expert ``which[i]`` makes of state i."""
        return xp.tanh(states * self.scale[which] + self.shift[which])


class Decoder:
    """What one rank does for its tokens, and its experts for everybody's."""

    def __init__(self, comm: MPI.Intracomm, states, experts: Experts, stream) -> None:
        count, hidden = states.shape
        self.states, self.experts, self.stream = states, experts, stream
        self.per_rank = EXPERTS // comm.size
        self.first = comm.rank * self.per_rank
        self.outbox, self.inbox = xp.zeros((count * TOP, hidden)), xp.zeros((count * TOP, hidden))
        self.areas = xp.zeros((comm.size, comm.allreduce(count, op=MPI.MAX) * TOP, hidden))
        self.splits = xp.zeros(EXPERTS, dtype=np.int64)
        self.all_splits = xp.zeros((comm.size, EXPERTS), dtype=np.int64)
        token = MPI.DOUBLE.Create_contiguous(hidden).Commit()
        self.dispatch = comm.Alltoallv_dynamic_init(
            [self.outbox, token], [self.areas, token], self.splits, allsplits=self.all_splits
        )
        self.combine = comm.Alltoallv_dynamic_combine_init([self.areas, token], [self.inbox, token], self.all_splits)

    def step(self, experts, weights) -> None:
        """Decode one step: sort copies of the tokens by expert, send them there and back, add what the experts made of them."""
        order = xp.argsort(experts.reshape(-1), kind="stable")
        self.outbox[...] = self.states[order // TOP]
        self.splits[...] = (experts.reshape(-1) == xp.arange(EXPERTS)[:, None]).sum(axis=1)
        self.start(self.dispatch)
        self.areas[...] = self.experts.think(self.areas, self.owners())
        self.start(self.combine)
        results = xp.empty_like(self.inbox)
        results[order] = self.inbox
        self.states = mixed(self.states, results.reshape(*weights.shape, -1), weights)

    def start(self, request) -> None:
        """Carry a request out: enqueued in the stream of a GPU, else here and now."""
        if self.stream is not None:
            request.Start(stream=self.stream)
        else:
            request.Start()
            request.Wait()

    def finish(self) -> None:
        """Wait for the stream, and raise what went wrong in it."""
        if self.stream is not None:
            self.stream.synchronize()
            self.dispatch.check()
            self.combine.check()

    def owners(self):
        """Return the expert of each token in the areas; places without a token count for the last one."""
        ends = xp.cumsum(self.all_splits[:, self.first : self.first + self.per_rank], axis=1)
        places = xp.arange(self.areas.shape[1])
        passed = (places[None, :, None] >= ends[:, None, :-1]).sum(axis=2)
        return self.first + passed


def mixed(states, results, weights):
    """Return states with the weighted results of their experts added."""
    return 0.5 * states + (weights[:, :, None] * results).sum(axis=1)


def alone(states, router: Router, experts: Experts, steps: int):
    """Return what one process computes, with every expert at hand."""
    for step in range(steps):
        chosen, weights = router.choose(step, slice(None))
        states = mixed(states, experts.think(states[:, None, :], chosen), weights)
    return states


def main() -> None:
    tokens, hidden, steps = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((1, 128), (2, 64), (3, 50)))
    comm = MPI.COMM_WORLD
    if EXPERTS % comm.size:
        raise SystemExit(f"the {EXPERTS} experts cannot be shared equally by {comm.size} ranks")
    stream = None
    if xp is not np:
        xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
        stream = xp.cuda.Stream(non_blocking=True)
        stream.use()
        comm.prepare()
    router, experts = Router(tokens, steps), Experts(hidden)
    states = xp.asarray(np.random.default_rng(1).normal(size=(tokens, hidden)))
    mine = slice(tokens * comm.rank // comm.size, tokens * (comm.rank + 1) // comm.size)
    decoder = Decoder(comm, states[mine].copy(), experts, stream)
    most = xp.zeros((), dtype=np.int64)
    for step in range(steps):
        decoder.step(*router.choose(step, mine))
        most = xp.maximum(most, decoder.all_splits.sum(axis=0).max())
    decoder.finish()
    parts = comm.gather(decoder.states if xp is np else xp.asnumpy(decoder.states), root=0)
    if comm.rank == 0:
        expected = alone(states, router, experts, steps)
        difference = np.abs(np.concatenate(parts) - (expected if xp is np else xp.asnumpy(expected))).max()
        print(f"{tokens} tokens of {hidden}, {EXPERTS} experts, the best {TOP} each, {steps} steps, arrays of {xp.__name__}")
        print(f"at most {int(most)} tokens for one expert, difference to one process {difference:.1e}")
        assert difference == 0.0


if __name__ == "__main__":
    main()
