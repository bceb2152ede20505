"""The benchmark: one mpi4py program, timed on our engine and on real MPI libraries, round by round in turn.

===============  ==========================================================================
worker.py        the program that is timed; it imports nothing but ``mpi4py`` and NumPy
points.py        what is measured (standard list, sweep), and the goals
sides.py         how each side is installed and started
placement.py     the flag round trip between the two cores, measured with every round
rounds.py        runs the sides in turn and collects
summary.py       medians, ratios to the fastest peer, verdicts
regret.py        our automatic choices against each of them forced
report.py        OSU-style, nccl-tests-style and Markdown tables
===============  ==========================================================================
"""
