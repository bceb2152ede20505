"""Public helpers for tests that need several ranks.

:mod:`~ncclx_mpi.testing.plugin` runs tests on ranks inside pytest; :mod:`~ncclx_mpi.testing.twins` says in NumPy what collectives must give;
:mod:`~ncclx_mpi.testing.guards` makes arrays beside pages that nobody can touch.
"""
