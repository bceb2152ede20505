"""The public names of mpi4py.MPI 4.1, and what they stand for: all of :mod:`ncclx_mpi.MPI` but the start of the communication.

Launchers import this module before they fork the ranks, which then find it ready. A name is here only when it works.
"""

# ruff: noqa: F401, F403  (names are what this module is for; all of those of constants are public)

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ncclx_mpi import errors as _errors
from ncclx_mpi.api.allocation import Alloc_mem, Free_mem
from ncclx_mpi.api.comm import COMM_NULL, Comm
from ncclx_mpi.api.datatype import (
    DATATYPE_NULL,
    Aint_add,
    Aint_diff,
    Datatype,
    Get_address,
    _datatype_create,
    _datatype_decode,
    _typealign,
    _typecode,
    _typedict,
    _typedict_c,
    _typedict_f,
)
from ncclx_mpi.api.datatype import PREDEFINED as _PREDEFINED
from ncclx_mpi.api.docstrings import begin_with_signatures as _begin_with_signatures
from ncclx_mpi.api.environment import (
    Attach_buffer,
    Detach_buffer,
    Finalize,
    Flush_buffer,
    Get_abi_fortran_info,
    Get_abi_info,
    Get_abi_version,
    Get_hw_resource_info,
    Get_library_version,
    Get_processor_name,
    Get_version,
    Iflush_buffer,
    Init,
    Init_thread,
    Is_finalized,
    Is_initialized,
    Is_thread_main,
    Pcontrol,
    Query_thread,
    Wtick,
    Wtime,
    _set_abort_status,
    get_vendor,
)
from ncclx_mpi.api.errhandler import ERRHANDLER_NULL, ERRORS_ABORT, ERRORS_ARE_FATAL, ERRORS_RETURN, Errhandler
from ncclx_mpi.api.generalized import Grequest
from ncclx_mpi.api.group import GROUP_EMPTY, GROUP_NULL, Group
from ncclx_mpi.api.handle import PUBLIC as _PUBLIC
from ncclx_mpi.api.info import INFO_ENV, INFO_NULL, Info
from ncclx_mpi.api.intercomm import Intercomm, _commctx_inter
from ncclx_mpi.api.intracomm import (
    COMM_SELF,
    COMM_WORLD,
    Intracomm,
    _comm_lock,
    _comm_lock_table,
    _commctx_intra,
)
from ncclx_mpi.api.message import MESSAGE_NO_PROC, MESSAGE_NULL, Message
from ncclx_mpi.api.op import (
    BAND,
    BOR,
    BXOR,
    LAND,
    LOR,
    LXOR,
    MAX,
    MAXLOC,
    MIN,
    MINLOC,
    NO_OP,
    OP_NULL,
    PROD,
    REPLACE,
    SUM,
    Op,
)
from ncclx_mpi.api.pickle import Pickle, pickle
from ncclx_mpi.api.ports import Close_port, Lookup_name, Open_port, Publish_name, Unpublish_name
from ncclx_mpi.api.request import REQUEST_NULL, Prequest, Request
from ncclx_mpi.api.session import SESSION_NULL, Session
from ncclx_mpi.api.status import Status
from ncclx_mpi.api.topocomm import Cartcomm, Distgraphcomm, Graphcomm, Topocomm
from ncclx_mpi.api.topology import Compute_dims
from ncclx_mpi.buffers.sentinels import BOTTOM, BUFFER_AUTOMATIC, IN_PLACE, BottomType, BufferAutomaticType, InPlaceType
from ncclx_mpi.compile_cache.bytecode import import_late as _import_late
from ncclx_mpi.constants import *
from ncclx_mpi.errors import (
    SUCCESS,
    Add_error_class,
    Add_error_code,
    Add_error_string,
    Exception,
    Get_error_class,
    Get_error_string,
    Remove_error_class,
    Remove_error_code,
    Remove_error_string,
)

globals().update(_PREDEFINED)
globals().update({name: code for name, code in vars(_errors).items() if name.startswith("ERR_")})
for _name, _each in list(globals().items()):
    if isinstance(_each, type) and not _name.startswith("_"):
        _each.__module__ = _PUBLIC  # where users find it, and where pickle looks
_begin_with_signatures(list(globals().values()))
del _begin_with_signatures, _each, _errors, _name, _PREDEFINED, _PUBLIC

_LATE = {
    "buffer": "memory",
    "memory": "memory",
    "File": "file",
    "FILE_NULL": "file",
    "Register_datarep": "datarep",
    "Win": "window",
    "WIN_NULL": "window",
}
"""Names of what is imported when it is first asked for, and where it is: most programs never do."""


def __getattr__(name: str) -> _Any:
    module = _sys.modules.get("ncclx_mpi.MPI")
    if name not in _LATE:
        raise AttributeError(f"module 'ncclx_mpi.MPI' has no attribute {name!r}", name=name, obj=module)
    found = getattr(_import_late(f"ncclx_mpi.api.{_LATE[name]}"), name)
    if module is not None:
        vars(module)[name] = found
    return found


if _TYPE_CHECKING:
    from ncclx_mpi.api.datarep import Register_datarep
    from ncclx_mpi.api.file import FILE_NULL, File
    from ncclx_mpi.api.memory import buffer, memory
    from ncclx_mpi.api.window import WIN_NULL, Win
