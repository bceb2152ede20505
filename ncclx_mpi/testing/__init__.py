"""Public helpers for tests that need several ranks: the pytest plugin :mod:`ncclx_mpi.testing.plugin`."""
