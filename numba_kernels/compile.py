"""Compile the GPU kernels ahead, without a GPU, and examine them: ``python -m numba_kernels.compile --arch sm_90``.

Every module of ours with a line ``KERNELS = ...`` takes part. ``--report`` compiles what the module calls ``REPORTED`` (all its kernels,
if it says nothing, and in any case with ``--all``) and prints a row for each: registers, stack and spilled bytes by ptxas, calls, loops that
poll. It ends with status 1 if a kernel spills, has a stack or a call, or a loop that nothing in it can end. Otherwise machine code goes
to ``--output``, a folder for ``$NCCLX_MPI_CUBINS``, or to the user's cache.

A kernel is compiled for all architectures in the same process: most of the work is the same for all.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

from numba_kernels import digests
from numba_kernels.cuda import cache
from numba_kernels.cuda.kernel import Kernel
from numba_kernels.cuda.loops import Ending, endings
from numba_kernels.cuda.ptx import AssemblerTooOld, CompilerMissing, Usage, assemble, run_ptxas
from numba_kernels.rows import NamedTuple

Arch = tuple[int, int]


class Row(NamedTuple):
    """What was found about a kernel for an architecture; `error` says why there is nothing else."""

    name: str
    arch: Arch
    usage: Usage = Usage(0, 0, 0)
    calls: int = 0
    polling: int = 0
    endless: int = 0
    error: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it keeps the rules."""
        return not (self.error or self.usage.stack or self.usage.spills or self.calls or self.endless)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = _options(arguments)
    begun = time.monotonic()
    kernels = find_kernels(is_sample=options.report and not options.all)
    names = [kernel.name for kernel in kernels if fnmatchcase(kernel.name, options.only)]
    if not names:
        print(f"no kernel is called {options.only!r}", file=sys.stderr)
        return 1
    try:
        rows = list(_compiled(names, options.arch, options.report, options.output, options.jobs))
    except AssemblerTooOld as error:  # which says nothing about the kernels
        print(error, file=sys.stderr)
        return 1
    if options.report:
        _print_table(rows, options.arch)
    broken = [row for row in rows if not row.is_clean]
    for row in broken:
        print(f"{row.name} for {_sm(row.arch)}: {row.error or 'breaks a rule'}", file=sys.stderr)
    print(f"{len(names)} kernels for {len(options.arch)} architectures in {time.monotonic() - begun:.0f} s, {len(broken)} broken")
    return 1 if broken else 0


def find_kernels(is_sample: bool) -> list[Kernel]:
    """All kernels of all modules, or those that each of them reports; names are unique."""
    found: dict[str, Kernel] = {}
    for module in map(importlib.import_module, _modules()):
        reported: Sequence[Kernel] = getattr(module, "REPORTED", module.KERNELS)
        for kernel in reported if is_sample else (*reported, *module.KERNELS):
            if found.setdefault(kernel.name, kernel) is not kernel:
                raise ValueError(f"two kernels are called {kernel.name}; one is of {module.__name__}")
    return list(found.values())


def _modules() -> Iterator[str]:
    """Modules that declare kernels. They are found in the text: importing all modules to see would start MPI."""
    for package in digests.PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                if re.search(r"^KERNELS\b", path.read_text(), re.MULTILINE):
                    yield ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")


def _compiled(names: list[str], arches: list[Arch], report: bool, output: Path | None, jobs: int) -> Iterator[Row]:
    tasks = [(names[first::jobs], arches, report, output) for first in range(jobs)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        for rows in pool.map(_compile_some, tasks):
            yield from rows


def _compile_some(task: tuple[list[str], list[Arch], bool, Path | None]) -> list[Row]:
    """Compile kernels in a process of its own."""
    names, arches, report, output = task
    kernels = {kernel.name: kernel for kernel in find_kernels(is_sample=False)}
    return [row for name in names for row in _compile_one(kernels[name], arches, report, output)]


def _compile_one(kernel: Kernel, arches: list[Arch], report: bool, output: Path | None) -> Iterator[Row]:
    try:
        texts = kernel.ptx_for_each(arches)
    except (CompilerMissing, ValueError) as error:
        yield from (Row(kernel.name, arch, error=str(error)) for arch in arches)
        return
    for arch, text in zip(arches, texts, strict=True):
        yield _assembled(kernel, arch, text, report, output)


def _assembled(kernel: Kernel, arch: Arch, text: str, report: bool, output: Path | None) -> Row:
    try:
        row, code = _examined(kernel, arch, text) if report else (Row(kernel.name, arch), assemble(text, arch))
    except AssemblerTooOld:
        raise
    except (CompilerMissing, ValueError) as error:
        return Row(kernel.name, arch, error=str(error))
    if output is not None:
        cache.write(str(output), kernel.name, kernel.digest, arch, code)
    elif not report:
        cache.keep(kernel.name, kernel.digest, arch, code)
    return row


def _examined(kernel: Kernel, arch: Arch, text: str) -> tuple[Row, bytes]:
    code, usage = run_ptxas(text, arch)
    found = endings(text)
    calls = len(re.findall(r"^\s*(?:@!?%\w+\s+)?call\b|\.extern\s+\.func", text, re.MULTILINE))
    return Row(kernel.name, arch, usage, calls, found.count(Ending.POLLS), found.count(Ending.NEVER)), code


def _print_table(rows: list[Row], arches: list[Arch]) -> None:
    """One row a kernel; numbers that differ between architectures are given for each."""
    width = max(len(row.name) for row in rows)
    print(f"{'kernel':{width}}  {'/'.join(map(_sm, arches)):>20}  stack  spills  calls  polling  endless")
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    for name, group in sorted(by_name.items()):
        columns = [[row.usage.registers for row in group], [row.usage.stack for row in group], [row.usage.spills for row in group]]
        columns += [[row.calls for row in group], [row.polling for row in group], [row.endless for row in group]]
        cells = [_joined(column) for column in columns]
        print(f"{name:{width}}  {cells[0]:>20}  {cells[1]:>5}  {cells[2]:>6}  {cells[3]:>5}  {cells[4]:>7}  {cells[5]:>7}")


def _joined(numbers: list[int]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else "/".join(map(str, numbers))


def _sm(arch: Arch) -> str:
    return f"sm_{arch[0]}{arch[1]}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m numba_kernels.compile", description="Compile the GPU kernels; no GPU is needed."
    )
    parser.add_argument("--arch", type=_arches, default="sm_80,sm_90,sm_100", help="architectures (default: %(default)s)")
    parser.add_argument("--report", action="store_true", help="print a row for each kernel; status 1 if one breaks the rules")
    parser.add_argument("--all", action="store_true", help="report every kernel, not a sample of each family: a quarter of an hour")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where machine code goes (default: the user's cache)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="kernels to compile, such as 'reduce_sum_f32_*'")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: %(default)s)")
    return parser.parse_args(arguments)


def _arches(text: str) -> list[Arch]:
    """Parse ``sm_90,sm_100``."""
    found = [re.fullmatch(r"sm_(\d+)(\d)", name.strip()) for name in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of architectures such as sm_90,sm_100")
    return [(int(match[1]), int(match[2])) for match in found if match]


if __name__ == "__main__":
    sys.exit(main())
