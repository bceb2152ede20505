# run by: run_tests.py
pytest_plugins = ["ncclx_mpi.testing.plugin"]
