"""Public helpers for tests that need several ranks.

:mod:`~ncclx_mpi.testing.plugin` runs tests on ranks inside pytest; :mod:`~ncclx_mpi.testing.twins` says in NumPy what collectives must give;
:mod:`~ncclx_mpi.testing.guarded` makes buffers at the edge of unreadable pages, :mod:`~ncclx_mpi.testing.guarded_arrays` all arrays of a
test (``pytest --guard-arrays``).
"""
