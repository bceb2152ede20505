"""``ncclx warm``: compile the engine into the cache, for images and login nodes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from ncclx_mpi.cli.main import program_name
from numba_kernels import shipped


def main(args: list[str]) -> int:
    """Fill the cache; does nothing if it is warm."""
    parser = argparse.ArgumentParser(prog=f"{program_name()} warm", description=__doc__)
    parser.add_argument("--quiet", action="store_true", help="say nothing if there is nothing to do")
    parser.add_argument("--first", action="store_true", help="only what most programs use, as a first start does")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="fill no cache, but a folder that a wheel can carry")
    parser.add_argument("--level", choices=shipped.LEVELS, action="append", help="processors to compile for; default: x86-64-v3")
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)  # in a process that compiles for one level
    parser.add_argument("--only", nargs=3, metavar=("MODULE", "NAME", "PARENT"), help=argparse.SUPPRESS)  # for a rank that lacks it
    options = parser.parse_args(args)
    if options.only:
        from ncclx_mpi.compile_cache import on_demand

        module, name, parent = options.only
        return 0 if on_demand.compile_named(module, name, int(parent)) else 1
    if options.level and not (options.output or options.collect):
        parser.error("--level says for which processors --output compiles; the cache is filled for this one")
    if options.output and options.first:
        parser.error("--output makes everything; leave --first out")
    if options.output or options.collect:
        return _ship(options)
    from ncclx_mpi.compile_cache import warm
    from numba_kernels import cache_files

    seconds = warm.warm_up(everything=not options.first)
    if not seconds and not options.quiet:
        print(f"the cache in {cache_files.cache_root()} is warm")
    return 0 if warm.is_warm(everything=not options.first) else 1


def _ship(options: argparse.Namespace) -> int:
    """Make the images of levels of processors, or those of one of them, for which this process compiles."""
    from ncclx_mpi.compile_cache import ship

    if options.collect:
        print(f"{options.level[0]}: {ship.collect(options.collect, options.level[0])} functions in {options.collect}")
        return 0
    try:
        ship.make(options.output.absolute(), options.level or ["x86-64-v3"])
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{program_name()} warm: {error}", file=sys.stderr)
        return 1
    return 0
