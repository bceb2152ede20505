# ranks: none
from ncclx_mpi import launch


def share(total: int) -> float:
    from ncclx_mpi import MPI

    return total / MPI.COMM_WORLD.rank


if __name__ == "__main__":
    try:
        launch.run(share, 2, 10)
    except launch.RankFailed as error:
        print("rank", error.rank, "failed:", error.remote_traceback.splitlines()[-1])
