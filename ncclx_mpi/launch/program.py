"""What a rank runs: a script, a module, a string or standard input as ``__main__``, or another program."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import CodeType, FrameType, ModuleType, TracebackType

from ncclx_mpi import process
from ncclx_mpi.launch import imports
from numba_kernels.rows import NamedTuple

SCRIPT, MODULE, CODE, STDIN, EXECUTABLE = "script", "module", "code", "stdin", "executable"
_LONGEST_LINE = 4096
_RUNNERS = ("mpi4py", "mpi4py.run", "mpi4py.futures")
"""Modules that run what follows on the command line, and use no NumPy."""


class UsageError(Exception):
    """The command line does not say what to run."""


class Program(NamedTuple):
    """What to run, and its arguments.

    Attributes
    ----------
    kind
        ``script``, ``module``, ``code``, ``stdin`` or ``executable``.
    target
        Path, module name or source text; empty for standard input that nobody has read yet.
    args
        ``sys.argv[1:]`` of the program.
    folder
        Where it starts; empty: where the launcher is.
    number
        Which of the programs of a job it is.
    """

    kind: str
    target: str
    args: list[str]
    folder: str = ""
    number: int = 0

    @property
    def is_python(self) -> bool:
        """Can it be forked?"""
        return self.kind != EXECUTABLE

    @property
    def may_import(self) -> frozenset[str]:
        """What it imports for all that is known, of what is better imported before ranks are forked (:mod:`ncclx_mpi.launch.imports`)."""
        if self.kind == SCRIPT:
            return imports.of_file(os.path.join(self.folder, self.target))
        if self.kind != MODULE:
            return imports.of_text(self.target, self.folder or os.curdir)
        try:
            is_runner = self.target in _RUNNERS
            return parse(self.args)._replace(folder=self.folder).may_import if is_runner else frozenset([imports.NUMPY])
        except UsageError:
            return frozenset([imports.NUMPY])


def parse(words: list[str]) -> Program:
    """The Python program that ``[pyfile | -m mod | -c cmd | -] [arg] ...`` means.

    Raises
    ------
    UsageError
        It means none.
    """
    if not words:
        raise UsageError("No path specified for execution")
    first, rest = words[0], words[1:]
    if first in ("-m", "-c") and not rest:
        raise UsageError(f"Argument expected for option: {first}")
    if first == "-m":
        return Program(MODULE, rest[0], rest[1:])
    if first == "-c":
        return Program(CODE, rest[0], rest[1:])
    if first == "-":
        return Program(STDIN, "", rest)
    return Program(SCRIPT, first, rest)


def parse_any(words: list[str]) -> tuple[Program, list[str]]:
    """As :func:`parse`, for programs of any kind; also returns the flags of a ``python -X ... script`` line.

    A file is a Python program if its name ends in ``.py``, ``.pyz`` or ``.pyw``, if it is a folder, or a file that is not executable, or if
    its first line names this very interpreter, as that of a command which pip has installed does.
    ``python script`` with this very interpreter means the script, so that it can be forked.
    """
    if words and words[0] not in ("-m", "-c", "-") and is_this_interpreter(words[0]):
        flags, rest = _split_flags(words[1:])
        return parse(rest or ["-"]), flags
    program = parse(words)
    if program.kind == SCRIPT and not _looks_like_python(program.target):
        found = _which(program.target)
        if found is None or not _is_script_of_this_interpreter(found):
            return Program(EXECUTABLE, program.target, program.args), []
        program = program._replace(target=found)
    return program, []


def _looks_like_python(path: str) -> bool:
    if path.endswith((".py", ".pyz", ".pyw")) or os.path.isdir(path):
        return True
    return os.path.isfile(path) and not os.access(path, os.X_OK)


def _is_script_of_this_interpreter(path: str) -> bool:
    """Does a file begin with ``#!``, this Python and no flag, and is it source text?"""
    try:
        with open(path, "rb") as file:
            words, is_archive = os.fsdecode(file.readline(_LONGEST_LINE)).split(), file.read(2) == b"PK"
    except OSError:
        return False
    if is_archive or not words or not words[0].startswith("#!"):
        return False
    interpreter = [word for word in [words[0].removeprefix("#!"), *words[1:]] if word and os.path.basename(word) != "env"]
    return len(interpreter) == 1 and is_this_interpreter(interpreter[0])


def is_this_interpreter(word: str) -> bool:
    """Is `word` a name of the running Python, of the same environment?"""
    if not os.path.basename(word).startswith("python"):
        return False
    found = _which(word)
    if found is None or not sys.executable:
        return False
    same_folder = os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))
    return same_folder and os.path.realpath(found) == os.path.realpath(sys.executable)


def _which(word: str) -> str | None:
    """Where a program is that is called so."""
    import shutil  # the modules here and below are not needed by most starts

    return shutil.which(word)


def _split_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """Interpreter flags, and what follows them."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "-m", "-c"):
        at += 2 if words[at] in ("-X", "-W", "--check-hash-based-pycs") else 1
    return words[:at], words[at:]


def run(program: Program) -> int:
    """Run a Python program as ``__main__`` and return its exit status; prints the traceback of an unhandled exception."""
    try:
        _execute(program)
    except SystemExit as leaving:
        return _status_of(leaving)
    except KeyboardInterrupt as interrupt:
        report(interrupt)
        return 130
    except BaseException as error:
        _end_quietly_if_aborted()
        report(error)
        return 1
    return 0


def _end_quietly_if_aborted() -> None:
    """Another rank has aborted the job, and this exception only is what became of us: its output is the one to read."""
    runtime = sys.modules.get("ncclx_mpi.runtime")
    if runtime is None or not runtime.is_active():
        return
    code = runtime.engine().arena.abort_code
    if code is not None:
        process.flush_streams()
        os._exit(code & 0xFF)


def _status_of(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def report(error: BaseException) -> None:
    """Print an unhandled exception through the program's ``sys.excepthook``, without our own frames."""
    error.__traceback__ = _program_part(error.__traceback__, is_unread=isinstance(error, SyntaxError))
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        process.print_exception()


def _program_part(trace: TracebackType | None, is_unread: bool) -> TracebackType | None:
    """The frames from the program on; all of them if it has none, except if Python could not read it: the error says where."""
    here, start = os.path.dirname(__file__), trace
    while trace is not None and _belongs_here(trace.tb_frame, here):
        trace = trace.tb_next
    return trace if trace is not None or is_unread else start


def _belongs_here(frame: FrameType, folder: str) -> bool:
    name, runpy = frame.f_code.co_filename, sys.modules.get("runpy")
    return name.startswith((folder, "<frozen")) or (runpy is not None and name == runpy.__file__)


def _execute(program: Program) -> None:
    if program.kind == MODULE:
        return _run_module(program)
    sys.argv[:] = [{CODE: "-c", STDIN: "-"}.get(program.kind, program.target), *program.args]
    if program.kind == SCRIPT:
        return _run_script(program.target)
    text, name = program.target, "<string>"
    if program.kind == STDIN:
        text, name = text or sys.stdin.read(), "<stdin>"
    _set_first_path("")
    main = _fresh_main(None)
    exec(compile(text, name, "exec", 0, True), main.__dict__)
    return None


def _run_script(path: str) -> None:
    if os.path.isdir(path) or path.endswith(".pyz"):
        import runpy

        runpy.run_path(path, run_name="__main__")
        return
    _set_first_path(os.path.realpath(os.path.dirname(path)))
    with open(path, "rb") as file:
        source = file.read()
    path = os.path.abspath(path)  # as the interpreter does: the program may change its folder
    main = _fresh_main(path)
    code = compile(source, path, "exec", 0, True)
    exec(code, main.__dict__)


def _run_module(program: Program) -> None:
    sys.argv[:] = ["-m", *program.args]
    _set_first_path(os.getcwd())
    code, spec = _find_module(program.target)
    sys.argv[0] = spec.origin or program.target
    main = _fresh_main(spec.origin)
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    exec(code, main.__dict__)


def _find_module(name: str) -> tuple[CodeType, importlib.machinery.ModuleSpec]:
    """Code and spec that ``python -m name`` would run."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    if spec is None or get_code is None:
        raise ImportError(f"No module named {name!r} that can be run")
    code = get_code(spec.name)
    if code is None:
        raise ImportError(f"module {name!r} has no Python code to run")
    return code, spec


def _set_first_path(folder: str) -> None:
    """As the interpreter does: the program's folder comes first, unless it runs isolated."""
    if not sys.flags.isolated and not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _fresh_main(path: str | None) -> ModuleType:
    """A new ``__main__``, for good: pickling and exit handlers of the program find their module until the end."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if path is not None:
        main.__file__ = path
        main.__dict__["__cached__"] = None
    sys.modules["__main__"] = main
    return main
