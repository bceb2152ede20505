"""Arrays in a GPU's memory in every kind of access: on the driver double, whose memory the CPU cannot touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import DeviceArray, Double
from tests.device.doubles import values_of
from tests.io.model import content_of, opened


@pytest.mark.parametrize("datarep", ["native", "external32"])
@pytest.mark.ranks(1, 2, 3)
def test_arrays_on_devices(comm: Any, datarep: str) -> None:
    count = 30_000
    with Double(1 + comm.rank), opened(comm) as (file, path):
        tile = MPI.INT.Create_vector(1, 1, 1).Create_resized(0, 4 * comm.size).Commit()
        file.Set_view(4 * comm.rank, MPI.INT, tile, datarep)
        given = np.arange(count, dtype="i4") + 1_000_000 * comm.rank
        source = DeviceArray.from_host(given)
        every_other = MPI.INT.Create_vector(count // 2, 1, 2).Commit()
        for turn, way in enumerate(("Write_at", "Write_at_all", "Iwrite_at")):
            request = getattr(file, way)(count * turn, source)
            if request is not None:
                request.Wait()
        file.Write_at_all(3 * count, [source, 1, every_other])
        file.Sync()
        comm.Barrier()
        table = content_of(path).view("i4" if datarep == "native" else ">i4").reshape(-1, comm.size)[:, comm.rank]
        assert table[: 3 * count].tolist() == np.tile(given, 3).tolist()
        assert table[3 * count :].tolist() == given[::2].tolist()
        for way in ("Read_at", "Read_at_all", "Iread_at"):
            found, status = DeviceArray.from_host(np.zeros(count, "i4")), MPI.Status()
            request = getattr(file, way)(3 * count - 10, found)
            if request is not None:
                request.Wait(status)
                assert status.Get_count(MPI.INT) == min(count, count // 2 + 10)
            read = values_of(found)
            assert read[: count // 2 + 10].tolist() == [*given[-10:], *given[::2]]
            assert not read[count // 2 + 10 :].any()
        comm.Barrier()
