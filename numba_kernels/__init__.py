"""What computes on bytes: atomics, copies, reductions, packing. Knows only numba and numpy."""
