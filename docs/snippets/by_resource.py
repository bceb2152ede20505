# run by: reordered.py
from mpi4py import MPI

comm, levels = MPI.COMM_WORLD, []
while comm:  # down to what is in no smaller resource
    info = MPI.Info.Create()
    comm = comm.Split_type(MPI.COMM_TYPE_HW_UNGUIDED, info=info)
    if comm:
        levels.append(f"{info['mpi_hw_resource_type']} of {comm.size}")
if MPI.COMM_WORLD.rank == 0:
    print("; ".join(levels[:2]))
