"""``ncclx warm``: compile the engine into the cache, for images and login nodes."""

from __future__ import annotations

import argparse

from ncclx_mpi.cli.main import program_name


def main(args: list[str]) -> int:
    """Fill the cache; does nothing if it is warm."""
    parser = argparse.ArgumentParser(prog=f"{program_name()} warm", description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="say nothing if there is nothing to do")
    parser.add_argument("--first", action="store_true", help="only what most programs use, as a first start does")
    options = parser.parse_args(args)
    from ncclx_mpi.compile_cache import warm
    from numba_kernels import cache_files

    seconds = warm.warm_up(everything=not options.first)
    if not seconds and not options.quiet:
        print(f"the cache in {cache_files.cache_root()} is warm")
    return 0 if warm.is_warm(everything=not options.first) else 1
