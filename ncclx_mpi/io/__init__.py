"""Files: what of a file a rank sees, and the ways of bytes between it and memory.

:mod:`~ncclx_mpi.io.file` is an open file; :mod:`~ncclx_mpi.io.view` maps the data that a rank sees to bytes of the file. Each rank accesses
them by itself (:mod:`~ncclx_mpi.io.independent`), or all ranks do in large pieces (:mod:`~ncclx_mpi.io.two_phase`).
"""
