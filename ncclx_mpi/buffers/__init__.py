"""Memory that a program passes: where it is, how far it reaches, and how a datatype lays its elements out."""

from ncclx_mpi.buffers.source import Source, open_source

__all__ = ["Source", "open_source"]
