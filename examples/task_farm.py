"""A task farm: rank 0 hands out numbers of uneven cost, and gives the next one to whoever is done (ANY_SOURCE).

The task is the length of a Collatz sequence. With one rank there is no worker, and rank 0 does the work.

ncclx run -n 4 examples/task_farm.py [tasks]
"""

import sys

from mpi4py import MPI

WORK, STOP = 1, 2


def collatz_length(number: int) -> int:
    """Return how many steps lead from `number` to 1."""
    steps = 0
    while number != 1:
        number = 3 * number + 1 if number % 2 else number // 2
        steps += 1
    return steps


def hand_out(comm: MPI.Intracomm, tasks: list[int]) -> dict[int, int]:
    """Serve the workers until all tasks are done; returns the answers."""
    answers: dict[int, int] = {}
    waiting = iter(tasks)
    status = MPI.Status()
    busy = comm.size - 1
    while busy:
        answer = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        if answer is not None:
            answers[answer[0]] = answer[1]
        task = next(waiting, None)
        comm.send(task, dest=status.Get_source(), tag=WORK if task is not None else STOP)
        busy -= task is None
    return answers


def work(comm: MPI.Intracomm) -> None:
    """Ask for tasks until rank 0 says stop."""
    status = MPI.Status()
    comm.send(None, dest=0)
    while True:
        task = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
        if status.Get_tag() == STOP:
            return
        comm.send((task, collatz_length(task)), dest=0)


def main() -> None:
    tasks = list(range(1, 1 + (int(sys.argv[1]) if len(sys.argv) > 1 else 2000)))
    comm = MPI.COMM_WORLD
    if comm.rank > 0:
        work(comm)
        return
    answers = hand_out(comm, tasks) if comm.size > 1 else {task: collatz_length(task) for task in tasks}
    assert sorted(answers) == tasks
    longest = max(tasks, key=lambda task: answers[task])
    print(f"{len(tasks)} tasks, {sum(answers.values())} steps, the longest sequence starts at {longest} ({answers[longest]} steps)")


if __name__ == "__main__":
    main()
