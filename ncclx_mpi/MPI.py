"""Message Passing Interface: the public names of mpi4py.MPI 4.1, on our own engine.

Names only; what they are is defined in :mod:`ncclx_mpi.api`. Importing this module starts the communication, unless
:mod:`ncclx_mpi.rc` says otherwise. A name is here only when it works.
"""

# ruff: noqa: F401  (names are what this module is for)

from ncclx_mpi import errors as _errors
from ncclx_mpi.api.comm import COMM_NULL, Comm
from ncclx_mpi.api.datarep import Register_datarep
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
from ncclx_mpi.api.datatype import (
    PREDEFINED as _PREDEFINED,
)
from ncclx_mpi.api.docstrings import begin_with_signatures as _begin_with_signatures
from ncclx_mpi.api.environment import (
    Attach_buffer,
    Detach_buffer,
    Finalize,
    Flush_buffer,
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
from ncclx_mpi.api.environment import bootstrap as _bootstrap
from ncclx_mpi.api.errhandler import ERRHANDLER_NULL, ERRORS_ABORT, ERRORS_ARE_FATAL, ERRORS_RETURN, Errhandler
from ncclx_mpi.api.file import FILE_NULL, File
from ncclx_mpi.api.generalized import Grequest
from ncclx_mpi.api.group import GROUP_EMPTY, GROUP_NULL, Group
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
from ncclx_mpi.api.memory import (
    BOTTOM,
    BUFFER_AUTOMATIC,
    IN_PLACE,
    Alloc_mem,
    BottomType,
    BufferAutomaticType,
    Free_mem,
    InPlaceType,
    buffer,
    memory,
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
from ncclx_mpi.api.request import REQUEST_NULL, Prequest, Request
from ncclx_mpi.api.session import SESSION_NULL, Session
from ncclx_mpi.api.status import Status
from ncclx_mpi.api.topocomm import Cartcomm, Distgraphcomm, Graphcomm, Topocomm
from ncclx_mpi.api.topology import Compute_dims
from ncclx_mpi.api.window import WIN_NULL, Win
from ncclx_mpi.constants import (
    ANY_SOURCE,
    ANY_TAG,
    APPNUM,
    BSEND_OVERHEAD,
    CART,
    COMBINER_CONTIGUOUS,
    COMBINER_DARRAY,
    COMBINER_DUP,
    COMBINER_F90_COMPLEX,
    COMBINER_F90_INTEGER,
    COMBINER_F90_REAL,
    COMBINER_HINDEXED,
    COMBINER_HINDEXED_BLOCK,
    COMBINER_HVECTOR,
    COMBINER_INDEXED,
    COMBINER_INDEXED_BLOCK,
    COMBINER_NAMED,
    COMBINER_RESIZED,
    COMBINER_STRUCT,
    COMBINER_SUBARRAY,
    COMBINER_VALUE_INDEX,
    COMBINER_VECTOR,
    COMM_TYPE_HW_GUIDED,
    COMM_TYPE_HW_UNGUIDED,
    COMM_TYPE_RESOURCE_GUIDED,
    COMM_TYPE_SHARED,
    CONGRUENT,
    DISP_CUR,
    DISPLACEMENT_CURRENT,
    DIST_GRAPH,
    DISTRIBUTE_BLOCK,
    DISTRIBUTE_CYCLIC,
    DISTRIBUTE_DFLT_DARG,
    DISTRIBUTE_NONE,
    F_ERROR,
    F_SOURCE,
    F_STATUS_SIZE,
    F_TAG,
    GRAPH,
    IDENT,
    IO,
    KEYVAL_INVALID,
    LASTUSEDCODE,
    LOCK_EXCLUSIVE,
    LOCK_SHARED,
    MAX_DATAREP_STRING,
    MAX_ERROR_STRING,
    MAX_INFO_KEY,
    MAX_INFO_VAL,
    MAX_LIBRARY_VERSION_STRING,
    MAX_OBJECT_NAME,
    MAX_PROCESSOR_NAME,
    MAX_PSET_NAME_LEN,
    MAX_STRINGTAG_LEN,
    MODE_APPEND,
    MODE_CREATE,
    MODE_DELETE_ON_CLOSE,
    MODE_EXCL,
    MODE_NOCHECK,
    MODE_NOPRECEDE,
    MODE_NOPUT,
    MODE_NOSTORE,
    MODE_NOSUCCEED,
    MODE_RDONLY,
    MODE_RDWR,
    MODE_SEQUENTIAL,
    MODE_UNIQUE_OPEN,
    MODE_WRONLY,
    ORDER_C,
    ORDER_F,
    ORDER_FORTRAN,
    PROC_NULL,
    ROOT,
    SEEK_CUR,
    SEEK_END,
    SEEK_SET,
    SIMILAR,
    SUBVERSION,
    TAG_UB,
    THREAD_FUNNELED,
    THREAD_MULTIPLE,
    THREAD_SERIALIZED,
    THREAD_SINGLE,
    TYPECLASS_COMPLEX,
    TYPECLASS_INTEGER,
    TYPECLASS_LOGICAL,
    TYPECLASS_REAL,
    UNDEFINED,
    UNEQUAL,
    UNIVERSE_SIZE,
    UNWEIGHTED,
    VERSION,
    WEIGHTS_EMPTY,
    WIN_BASE,
    WIN_CREATE_FLAVOR,
    WIN_DISP_UNIT,
    WIN_FLAVOR,
    WIN_FLAVOR_ALLOCATE,
    WIN_FLAVOR_CREATE,
    WIN_FLAVOR_DYNAMIC,
    WIN_FLAVOR_SHARED,
    WIN_MODEL,
    WIN_SEPARATE,
    WIN_SIZE,
    WIN_UNIFIED,
    WTIME_IS_GLOBAL,
)
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
for _each in list(globals().values()):
    if isinstance(_each, type):
        _each.__module__ = __name__  # where users find it, and where pickle looks
_begin_with_signatures(list(globals().values()))

_bootstrap()
del _begin_with_signatures, _bootstrap, _each, _errors, _PREDEFINED
