"""The objects of MPI, one file each; :mod:`ncclx_mpi.MPI` gives them their public names."""
