# ranks: 1
from mpi4py.futures import MPIPoolExecutor


def collatz_length(number: int) -> int:
    """How many steps lead from a number to 1."""
    steps = 0
    while number != 1:
        number = 3 * number + 1 if number % 2 else number // 2
        steps += 1
    return steps


if __name__ == "__main__":
    with MPIPoolExecutor(max_workers=3) as pool:
        lengths = list(pool.map(collatz_length, range(1, 2001), chunksize=100))
        later = pool.submit(collatz_length, 837799)
        print("longest below 2001:", max(lengths), "steps, from", 1 + lengths.index(max(lengths)))
        print("from 837799:", later.result())
