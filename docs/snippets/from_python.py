# ranks: none
from ncclx_mpi import launch


def work(factor: int) -> int:
    from ncclx_mpi import MPI

    return MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank * factor)


if __name__ == "__main__":
    print(launch.run(work, 3, 10))
