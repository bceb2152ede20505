"""Message Passing Interface: the public names of mpi4py.MPI 4.1, on our own engine.

Importing this module starts the communication, unless :mod:`ncclx_mpi.rc` says otherwise.
"""

# ruff: noqa: F401, F403  (names are what this module is for; all of those of the other one are public)

from ncclx_mpi import collector as _collector
from ncclx_mpi.compile_cache import bytecode as _bytecode

with _collector.at_rest():
    from ncclx_mpi.api.environment import bootstrap as _bootstrap
    from ncclx_mpi.api.public import *
    from ncclx_mpi.api.public import (
        _LATE,
        __getattr__,
        _comm_lock,
        _comm_lock_table,
        _commctx_inter,
        _commctx_intra,
        _datatype_create,
        _datatype_decode,
        _set_abort_status,
        _typealign,
        _typecode,
        _typedict,
        _typedict_c,
        _typedict_f,
    )

    _bootstrap()
    _bytecode.forget()
del _bootstrap, _bytecode, _collector

globals()["__all__"] = [*(_name for _name in globals() if not _name.startswith("_")), *_LATE]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
