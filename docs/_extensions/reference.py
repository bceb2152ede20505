"""What the reference is made of beside autodoc: the names of MPI in groups, the algorithms, the help of each command."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

import examples
from ncclx_mpi import MPI, algorithms
from ncclx_mpi.cli.main import COMMANDS

MODULE = "ncclx_mpi.MPI"
NAMES = {name: getattr(MPI, name) for name in dir(MPI)}
"""Those of what is imported when it is first asked for, too."""
CLASSES = list(dict.fromkeys(value for name, value in NAMES.items() if isinstance(value, type) and not name.startswith("_")))
FUNCTIONS = [name for name, value in NAMES.items() if inspect.isroutine(value) and not name.startswith("_")]
CONSTANTS = {
    name: value
    for name, value in NAMES.items()
    if not (name.startswith("_") or isinstance(value, type) or inspect.isroutine(value) or inspect.ismodule(value))
}
UNDERLINE = "-"
EXAMPLES_OF_A_COMMAND = 4
EXAMPLES = examples.by_name()
OF_UNION = re.compile(r"TypeAliasForwardRef\('([^']+)'\)")


def constants_of(kind: str) -> list[str]:
    """The names of one kind: errors, operations, datatypes, handles (whatever else is an object), numbers."""
    kinds = {"operations": MPI.Op, "datatypes": MPI.Datatype}

    def kind_of(name: str) -> str:
        if name.startswith("ERR_") or name == "SUCCESS":
            return "errors"
        if not isinstance(CONSTANTS[name], int | str) or name.endswith("_NULL"):
            known = [kind for kind, its in kinds.items() if isinstance(CONSTANTS[name], its) and not name.endswith("_NULL")]
            return known[0] if known else "handles"
        return "numbers"

    return sorted(name for name in CONSTANTS if kind_of(name) == kind)


def groups_of(cls: type) -> Iterable[tuple[str, list[str]]]:
    """The public members of a class that no public base of it has, by the class of ours that defines them: its title, and their names."""
    static, listed = inspect.getattr_static, set(dir(cls))
    bases = [base for base in cls.__mro__[1:] if base in CLASSES]
    seen: set[str] = {name for base in bases for name in dir(base) if static(base, name) is static(cls, name)}
    for each in cls.__mro__:
        if each.__module__.startswith("ncclx_mpi"):
            names = [name for name in vars(each) if not name.startswith("_") and name in listed - seen]
            seen.update(names)
            if names:
                words = " ".join(re.findall("[A-Z][a-z]+", each.__name__)).lower()
                yield "" if each is cls else f"{cls.__name__}: {words}", names


class Lines(SphinxDirective, ABC):
    """A directive that is short for some lines of reStructuredText."""

    has_content = False

    @abstractmethod
    def text(self) -> str:
        """Those lines."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(self.text(), allow_section_headings=True)


class Class(Lines):
    """``mpi-class:: Comm``: the class, and its members in the groups in which the code has them."""

    required_arguments = 1

    def text(self) -> str:
        cls = getattr(MPI, self.arguments[0])
        lines = [f".. autoclass:: {MODULE}.{cls.__name__}", "   :show-inheritance:" if _has_public_base(cls) else "", ""]
        lines += [f"In mpi4py: :external+mpi4py:py:class:`mpi4py.MPI.{cls.__name__}`.", ""]
        for alias in (name for name, value in NAMES.items() if value is cls and name != cls.__name__):
            lines += [f".. py:data:: {MODULE}.{alias}", "", f"   Another name of :class:`{MODULE}.{cls.__name__}`.", ""]
        for title, names in groups_of(cls):
            if title:
                lines += [title, UNDERLINE * len(title), ""]
            for name in sorted(names):
                lines += [f".. auto{_kind(inspect.getattr_static(cls, name))}:: {MODULE}.{cls.__name__}.{name}", ""]
        return "\n".join(lines)


def _has_public_base(cls: type) -> bool:
    return any(base in CLASSES for base in cls.__mro__[1:])


def _kind(member: Any) -> str:
    if isinstance(member, property):
        return "property"
    return "method" if isinstance(member, FunctionType | classmethod | staticmethod) else "attribute"


class Begin(Lines):
    """``examples-begin:: files``: the lines that all examples of a page begin with."""

    required_arguments = 1

    def text(self) -> str:
        return "\n".join(block(examples.read(examples.FOLDER / f"{self.arguments[0]}.py").begin))


class Functions(Lines):
    """``mpi-functions::``: those of the module."""

    def text(self) -> str:
        return "\n".join(f".. autofunction:: {MODULE}.{name}" for name in sorted(FUNCTIONS))


class Constants(Lines):
    """``mpi-constants:: errors``: those of a kind, with the values of those that are numbers."""

    required_arguments = 1

    def text(self) -> str:
        kind = self.arguments[0]
        return "\n".join([*block(EXAMPLES[kind]), *(self._entry(name, kind) for name in constants_of(kind))])

    def _entry(self, name: str, kind: str) -> str:
        value = CONSTANTS[name]
        shown = f"\n   :value: {value!r}" if isinstance(value, int | str) and type(value) in (int, str) else ""
        said = {"errors": lambda: MPI.Get_error_string(value), "datatypes": lambda: bytes_of(value)}.get(kind, str)()
        return f".. py:data:: {MODULE}.{name}{shown}\n\n   {said}\n"


def bytes_of(datatype: MPI.Datatype) -> str:
    """What an element is: its size, and what NumPy calls it."""
    if not datatype:
        return "Null: there is no such type here."
    named = f", ``{datatype.typestr}`` in NumPy" if datatype.typestr[:1] != "V" else ""
    return f"{datatype.Get_size()} bytes{named}."


class Aliases(Lines):
    """``type-aliases:: ncclx_mpi.typing``: what annotations call things by; autodoc would make data of them, which they do not link to."""

    required_arguments = 1

    def text(self) -> str:
        module = self.arguments[0]
        documented = ModuleAnalyzer.for_module(module).find_attr_docs()
        entries = (f".. py:type:: {module}.{name}\n\n   {' '.join(lines)}\n" for (_, name), lines in documented.items())
        return "\n".join(entries)


class Algorithms(Lines):
    """``algorithms::``: what the file of each algorithm says of it."""

    def text(self) -> str:
        lines: list[str] = []
        for collective in algorithms.ALGORITHMS:
            lines += [collective, UNDERLINE * len(collective), ""]
            for row in algorithms.rows_of(collective):
                lines += [f".. rubric:: {row.name}", f"   :name: {collective}-{row.name.replace('_', '-')}", ""]
                lines += [_said_by(row), "", *shell([f"NCCLX_MPI_ALGO_{collective.upper()}={row.name} {examples.COLLECTIVES}"])]
                if row.kind == algorithms.PLAN:
                    name = f"{collective}-{row.name}"
                    lines += [
                        f".. image:: /pictures/{name}.svg",
                        f"   :alt: {row.name} of {collective}: who sends to whom, and what waits for it",
                        "",
                    ]
        return "\n".join(lines)


def _said_by(row: algorithms.Algorithm) -> str:
    module = f"ncclx_mpi.collectives.{row.collective}.{row.name}"
    if importlib.util.find_spec(module) is None:
        return "Its file is ``ncclx_mpi/collectives/alltoall/cma_vector.py``: one rank gives, or gets, all blocks."
    return inspect.getdoc(importlib.import_module(module)) or ""


class Commands(Lines):
    """``commands::``: what each command prints for ``--help``."""

    def text(self) -> str:
        lines: list[str] = []
        for command in COMMANDS:
            title = f"ncclx {command}"
            lines += [title, UNDERLINE * len(title), "", ".. code-block:: text", ""]
            lines += [f"   {line}" for line in help_of(command).splitlines()] + [""]
            lines += ["Command lines of these pages that tests run:", "", *shell(commands_that_ran(command))]
        return "\n".join(lines)


def commands_that_ran(command: str) -> list[str]:
    """Lines of the pages with this command, of those that a test runs."""
    listed = tomllib.loads((Path(examples.__file__).parent / "commands.toml").read_text())
    lines = [*listed["run"], *listed["tested"]]
    return [line for line in lines if re.search(rf"\bncclx {command}\b", line)][:EXAMPLES_OF_A_COMMAND]


def help_of(command: str) -> str:
    """What ``ncclx COMMAND --help`` prints."""
    printed = io.StringIO()
    as_typed = mock.patch.object(sys, "argv", ["ncclx"]), mock.patch.dict(os.environ, COLUMNS="100")
    with as_typed[0], as_typed[1], contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(COMMANDS[command][0]).main(["--help"])
    return printed.getvalue()


def without_signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave out the first line of docstrings of MPI, which is the signature for tools that know no function."""
    last = name.rsplit(".", 1)[-1]
    if name.startswith(MODULE) and lines and (lines[0] == last or lines[0].startswith(f"{last}(")):
        del lines[0]


def with_names_of_aliases(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Put the name of a type in place of what autodoc makes of an alias that is part of a union."""
    if arguments is None or OF_UNION.search(arguments) is None:
        return None  # as it is
    return OF_UNION.sub(r"\1", arguments), returned


def with_example(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put the smallest example of a name below what is said of it."""
    owner = NAMES.get(name.removeprefix(f"{MODULE}.").split(".")[0]) if name.startswith(f"{MODULE}.") else None
    for candidate in examples.candidates(name, owner if isinstance(owner, type) else None):
        if candidate in EXAMPLES:
            lines += ["", *block(EXAMPLES[candidate])]
            break


def block(text: str) -> list[str]:
    """Lines that show a program."""
    return [".. code-block:: python", "", *(f"   {line}".rstrip() for line in text.splitlines()), ""]


def shell(lines: list[str]) -> list[str]:
    """Lines that show commands."""
    return [".. code-block:: bash", "", *(f"   {line}" for line in lines), ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("mpi-class", Class)
    app.add_directive("mpi-functions", Functions)
    app.add_directive("mpi-constants", Constants)
    app.add_directive("type-aliases", Aliases)
    app.add_directive("algorithms", Algorithms)
    app.add_directive("commands", Commands)
    app.add_directive("examples-begin", Begin)
    app.connect("autodoc-process-docstring", without_signature, priority=100)
    app.connect("autodoc-process-docstring", with_example, priority=900)
    app.connect("autodoc-process-signature", with_names_of_aliases)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
