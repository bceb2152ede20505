# ranks: 1
from mpi4py.futures import MPIPoolExecutor


def divisors(number: int) -> int:
    """How many numbers divide this one; slow for large ones."""
    return sum(number % candidate == 0 for candidate in range(1, number + 1))


if __name__ == "__main__":
    with MPIPoolExecutor(max_workers=3) as pool:
        counts = list(pool.map(divisors, range(1, 2001), chunksize=100))
        later = pool.submit(divisors, 720_720)
        print("most divisors below 2001:", max(counts), "of", 1 + counts.index(max(counts)))
        print("of 720720:", later.result())
