"""Ports, and the names under which they are published on this host for programs of the same user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ncclx_mpi import errors, late, runtime
from ncclx_mpi.api.handle import text
from ncclx_mpi.api.info import INFO_NULL, Info

if TYPE_CHECKING:
    from ncclx_mpi.api import job_talk
    from ncclx_mpi.bootstrap import names, port
    from ncclx_mpi.bootstrap.port import Port
else:
    job_talk = late.module("ncclx_mpi.api.job_talk")
    names, port = late.module("ncclx_mpi.bootstrap.names"), late.module("ncclx_mpi.bootstrap.port")

_opened: dict[str, Port] = {}


def Open_port(info: Info = INFO_NULL) -> str:
    """Return an address that can be used to establish connections between groups of MPI processes of one user on one host, or of one job."""
    engine = runtime.engine()
    rank = engine.rank
    try:
        made = port.Port(*engine.guests.identity(rank))
    except (OSError, RuntimeError) as error:
        raise errors.error(errors.ERR_PORT, f"rank {rank}: Open_port: {error}") from None
    _opened[made.name] = made
    return made.name


def Close_port(port_name: str) -> None:
    """Close a port.

    Raises
    ------
    Exception
        ERR_PORT: this process has not opened it.
    """
    closed = opened(port_name)
    del _opened[port_name]
    closed.close()
    job_talk.refuse_all(runtime.engine(), closed.number)


def Publish_name(service_name: str, port_name: str, info: Info = INFO_NULL) -> None:
    """Publish a service name, for programs of this user on this host, until it is unpublished or this process ends.

    Raises
    ------
    Exception
        ERR_PORT: this is no name of a port. ERR_SERVICE: the service is published already, or cannot be.
    """
    service, name, rank = text(service_name), checked(port_name), runtime.engine().rank
    try:
        is_new = names.publish(service, name)
    except OSError as error:
        raise errors.error(errors.ERR_SERVICE, f"rank {rank}: Publish_name: {service!r} cannot be published: {error}") from None
    if not is_new:
        errors.fail(errors.ERR_SERVICE, f"rank {rank}: Publish_name: {service!r} is published already on this host")


def Unpublish_name(service_name: str, port_name: str, info: Info = INFO_NULL) -> None:
    """Unpublish a service name.

    Raises
    ------
    Exception
        ERR_SERVICE: this process has not published it for this port.
    """
    service = text(service_name)
    if not names.unpublish(service, text(port_name)):
        rank = runtime.engine().rank
        errors.fail(errors.ERR_SERVICE, f"rank {rank}: Unpublish_name: this process has not published {service!r} for this port")


def Lookup_name(service_name: str, info: Info = INFO_NULL) -> str:
    """Lookup a port name given a service name.

    Raises
    ------
    Exception
        ERR_NAME: no program of this user on this host has published it.
    """
    service, rank = text(service_name), runtime.engine().rank
    found = names.look_up(service)
    if found is None:
        errors.fail(errors.ERR_NAME, f"rank {rank}: Lookup_name: nobody has published {service!r} on this host")
    return found


def opened(port_name: Any) -> Port:
    """A port that this process has opened, by its name."""
    found = _opened.get(text(port_name))
    if found is None:
        rank = runtime.engine().rank
        errors.fail(
            errors.ERR_PORT,
            f"rank {rank}: this process has opened no port {port_name!r}; the process that has opened one accepts there",
        )
    return found


def checked(port_name: Any) -> str:
    """What can be the name of a port."""
    name = text(port_name)
    if port.place(name) is None:
        errors.fail(errors.ERR_PORT, f"rank {runtime.engine().rank}: {name!r} is no name of a port; Open_port returns one")
    return name
