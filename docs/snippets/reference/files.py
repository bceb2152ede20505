# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank
MODE = MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_DELETE_ON_CLOSE

# example: File.Open File.Close
file = MPI.File.Open(comm, "data.bin", MPI.MODE_WRONLY | MPI.MODE_CREATE)  # all ranks together
file.Close()

# example: File.free
file = MPI.File.Open(comm, "data.bin", MODE)
file.free()  # as Close

# example: File.Delete
MPI.File.Open(comm, "old.bin", MPI.MODE_WRONLY | MPI.MODE_CREATE).Close()
if rank == 0:
    MPI.File.Delete("old.bin")

# example: File.size File.Get_size File.Set_size
file = MPI.File.Open(comm, "data.bin", MODE)
file.Set_size(100)
assert file.size == file.Get_size() == 100
file.Close()

# example: File.Preallocate
file = MPI.File.Open(comm, "data.bin", MODE)
file.Preallocate(1000)  # room on the disk
assert file.Get_size() == 1000
file.Close()

# example: File.amode File.Get_amode
file = MPI.File.Open(comm, "data.bin", MODE)
assert file.amode == file.Get_amode() == MODE
file.Close()

# example: File.group File.Get_group File.group_size File.group_rank
file = MPI.File.Open(comm, "data.bin", MODE)
assert file.group.size == file.Get_group().size == file.group_size == 2
assert file.group_rank == rank
file.Close()

# example: File.info File.Set_info File.Get_info
file = MPI.File.Open(comm, "data.bin", MODE)
file.Set_info(MPI.Info.Create({"cb_nodes": "1"}))  # hints
assert len(file.Get_info()) == len(file.info)
file.Close()

# example: File.Create_errhandler File.Set_errhandler File.Get_errhandler File.Call_errhandler
codes = []
handler = MPI.File.Create_errhandler(lambda file, code: codes.append(code))
file = MPI.File.Open(comm, "data.bin", MODE)
file.Set_errhandler(handler)
assert file.Get_errhandler() == handler
file.Call_errhandler(MPI.ERR_IO)
assert codes == [MPI.ERR_IO]
file.Close()

# example: File.atomicity File.Set_atomicity File.Get_atomicity
file = MPI.File.Open(comm, "data.bin", MODE)
file.Set_atomicity(True)  # accesses that overlap come one after the other
assert file.atomicity and file.Get_atomicity()
file.Close()

# example: File.Sync
file = MPI.File.Open(comm, "data.bin", MODE)
file.Write_at(8 * rank, np.array([rank]))
file.Sync()  # is on the disk
file.Close()

# example: File.Set_view File.Get_view
file = MPI.File.Open(comm, "data.bin", MODE)
file.Set_view(disp=16 * rank, etype=MPI.INT64_T)  # this rank sees what begins there, in elements
assert file.Get_view()[0] == 16 * rank
file.Write_at(1, np.array([rank]))  # its second one
assert file.Get_size() >= 16
file.Close()

# example: File.Get_type_extent
file = MPI.File.Open(comm, "data.bin", MODE)
assert file.Get_type_extent(MPI.DOUBLE) == 8  # in the data representation of the view
file.Close()

# example: File.Seek File.Get_position
file = MPI.File.Open(comm, "data.bin", MODE)
file.Seek(8 * rank)  # each rank has a pointer of its own
assert file.Get_position() == 8 * rank
file.Close()

# example: File.Get_byte_offset
file = MPI.File.Open(comm, "data.bin", MODE)
file.Set_view(100, MPI.DOUBLE)
assert file.Get_byte_offset(2) == 116
file.Close()

# example: File.Seek_shared File.Get_position_shared
file = MPI.File.Open(comm, "data.bin", MODE)
file.Seek_shared(40)  # one pointer of all ranks
assert file.Get_position_shared() == 40
file.Close()

# example: File.Write_at File.Read_at
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Write_at(8 * rank, np.array([rank]))
file.Read_at(8 * rank, data)
assert data[0] == rank
file.Close()

# example: File.Write_at_all File.Read_at_all
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Write_at_all(8 * rank, np.array([rank]))  # all ranks together
file.Read_at_all(8 * rank, data)
assert data[0] == rank
file.Close()

# example: File.Iwrite_at File.Iread_at
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Iwrite_at(8 * rank, np.array([rank])).Wait()
file.Iread_at(8 * rank, data).Wait()
assert data[0] == rank
file.Close()

# example: File.Iwrite_at_all File.Iread_at_all
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Iwrite_at_all(8 * rank, np.array([rank])).Wait()
file.Iread_at_all(8 * rank, data).Wait()
assert data[0] == rank
file.Close()

# example: File.Write File.Read
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Seek(8 * rank)
file.Write(np.array([rank]))  # where this rank's pointer is, which moves on
file.Seek(8 * rank)
file.Read(data)
assert data[0] == rank
file.Close()

# example: File.Write_all File.Read_all
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Set_view(8 * rank, MPI.INT64_T)
file.Write_all(np.array([rank]))  # all ranks together, each where its pointer is
file.Seek(0)
file.Read_all(data)
assert data[0] == rank
file.Close()

# example: File.Iwrite File.Iread
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Set_view(8 * rank, MPI.INT64_T)
file.Iwrite(np.array([rank])).Wait()
file.Seek(0)
file.Iread(data).Wait()
assert data[0] == rank
file.Close()

# example: File.Iwrite_all File.Iread_all
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Set_view(8 * rank, MPI.INT64_T)
file.Iwrite_all(np.array([rank])).Wait()
file.Seek(0)
file.Iread_all(data).Wait()
assert data[0] == rank
file.Close()

# example: File.Write_shared File.Read_shared
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Write_shared(np.array([rank]))  # whoever comes first
comm.Barrier()
file.Seek_shared(0)
file.Read_shared(data)
assert sorted(comm.allgather(int(data[0]))) == [0, 1]
file.Close()

# example: File.Iwrite_shared File.Iread_shared
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Iwrite_shared(np.array([rank])).Wait()
comm.Barrier()
file.Seek_shared(0)
file.Iread_shared(data).Wait()
assert sorted(comm.allgather(int(data[0]))) == [0, 1]
file.Close()

# example: File.Write_ordered File.Read_ordered
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, int)
file.Write_ordered(np.array([rank]))  # in the order of ranks
file.Seek_shared(0)
file.Read_ordered(data)
assert data[0] == rank
file.Close()

# example: File.Write_at_all_begin File.Write_at_all_end File.Read_at_all_begin File.Read_at_all_end
file, mine, data = MPI.File.Open(comm, "data.bin", MODE), np.array([rank]), np.empty(1, int)
file.Write_at_all_begin(8 * rank, mine)
file.Write_at_all_end(mine)  # there was time for something else
file.Read_at_all_begin(8 * rank, data)
file.Read_at_all_end(data)
assert data[0] == rank
file.Close()

# example: File.Write_all_begin File.Write_all_end File.Read_all_begin File.Read_all_end
file, mine, data = MPI.File.Open(comm, "data.bin", MODE), np.array([rank]), np.empty(1, int)
file.Set_view(8 * rank, MPI.INT64_T)
file.Write_all_begin(mine)
file.Write_all_end(mine)
file.Seek(0)
file.Read_all_begin(data)
file.Read_all_end(data)
assert data[0] == rank
file.Close()

# example: File.Write_ordered_begin File.Write_ordered_end File.Read_ordered_begin File.Read_ordered_end
file, mine, data = MPI.File.Open(comm, "data.bin", MODE), np.array([rank]), np.empty(1, int)
file.Write_ordered_begin(mine)
file.Write_ordered_end(mine)
file.Seek_shared(0)
file.Read_ordered_begin(data)
file.Read_ordered_end(data)
assert data[0] == rank
file.Close()


# example: Register_datarep
def swapped(userbuf, datatype, count, filebuf, position):
    values = np.frombuffer(userbuf, "i8")[position : position + count]
    filebuf[: values.nbytes] = values.byteswap().tobytes()


MPI.Register_datarep("swapped", None, swapped, lambda datatype: datatype.extent)
file, data = MPI.File.Open(comm, "data.bin", MODE), np.empty(1, ">i8")
file.Set_view(8 * rank, MPI.INT64_T, datarep="swapped")
file.Write_all(np.array([rank]))
file.Set_view(8 * rank, MPI.INT64_T)
file.Read_all([data, 1, MPI.INT64_T])
assert data[0] == rank
file.Close()
