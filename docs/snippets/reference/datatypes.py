# ranks: 2
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
other = 1 - rank

# example: Datatype.size Datatype.Get_size
assert MPI.DOUBLE.size == MPI.DOUBLE.Get_size() == 8

# example: Datatype.extent Datatype.lb Datatype.ub Datatype.Get_extent
column = MPI.DOUBLE.Create_vector(3, 1, 4)  # 3 numbers, each four after the one before
assert (column.lb, column.extent) == column.Get_extent() == (0, 72)
assert column.ub == 72

# example: Datatype.true_extent Datatype.true_lb Datatype.true_ub Datatype.Get_true_extent
wide = MPI.DOUBLE.Create_resized(-8, 32)
assert (wide.true_lb, wide.true_extent) == wide.Get_true_extent() == (0, 8)  # what is really touched
assert wide.true_ub == 8

# example: Datatype.Commit
column = MPI.DOUBLE.Create_vector(2, 1, 3).Commit()  # before it can be used in a message
field = np.arange(6.0).reshape(2, 3) if rank == 0 else np.zeros((2, 3))
comm.Bcast([field, 1, column], root=0)
assert field[:, 0].tolist() == [0, 3]

# example: Datatype.Free
pair = MPI.INT.Create_contiguous(2)
pair.Free()
assert pair == MPI.DATATYPE_NULL

# example: Datatype.Dup Datatype.Create_dup
assert MPI.DOUBLE.Dup().Get_size() == MPI.DOUBLE.Create_dup().Get_size() == 8

# example: Datatype.Create_contiguous
assert MPI.DOUBLE.Create_contiguous(3).Get_size() == 24

# example: Datatype.Create_vector
column = MPI.DOUBLE.Create_vector(count=3, blocklength=1, stride=4)
assert column.Get_size() == 24

# example: Datatype.Create_hvector
column = MPI.DOUBLE.Create_hvector(count=3, blocklength=1, stride=32)  # the stride in bytes
assert column.Get_size() == 24

# example: Datatype.Create_indexed
parts = MPI.DOUBLE.Create_indexed(blocklengths=[1, 2], displacements=[0, 5])
assert parts.Get_size() == 24

# example: Datatype.Create_hindexed
parts = MPI.DOUBLE.Create_hindexed(blocklengths=[1, 2], displacements=[0, 40])  # in bytes
assert parts.Get_size() == 24

# example: Datatype.Create_indexed_block
parts = MPI.DOUBLE.Create_indexed_block(2, displacements=[0, 5])
assert parts.Get_size() == 32

# example: Datatype.Create_hindexed_block
parts = MPI.DOUBLE.Create_hindexed_block(2, displacements=[0, 40])  # in bytes
assert parts.Get_size() == 32

# example: Datatype.Create_struct
record = np.dtype([("number", "i8"), ("weight", "f8")])
places = [record.fields[name][1] for name in record.names]
particle = MPI.Datatype.Create_struct([1, 1], places, [MPI.INT64_T, MPI.DOUBLE]).Commit()
particles = np.zeros(2, record) if rank else np.array([(1, 0.5), (2, 1.5)], record)
comm.Bcast([particles, 2, particle], root=0)
assert particles["weight"].tolist() == [0.5, 1.5]

# example: Datatype.Create_subarray
inner = MPI.DOUBLE.Create_subarray(sizes=[4, 4], subsizes=[2, 2], starts=[1, 1]).Commit()
field = np.ones((4, 4)) if rank == 0 else np.zeros((4, 4))
comm.Bcast([field, 1, inner], root=0)
assert field[1:3, 1:3].sum() == 4

# example: Datatype.Create_darray
mine = MPI.DOUBLE.Create_darray(2, rank, [4], [MPI.DISTRIBUTE_CYCLIC], [MPI.DISTRIBUTE_DFLT_DARG], [2])
assert mine.Get_size() == 16  # every second of four numbers

# example: Datatype.Create_resized Datatype.Resized
far = MPI.DOUBLE.Create_resized(lb=0, extent=32)  # the next element begins 32 bytes later
assert far.Get_extent() == MPI.DOUBLE.Resized(0, 32).Get_extent() == (0, 32)

# example: Datatype.Get_value_index
assert MPI.Datatype.Get_value_index(MPI.DOUBLE, MPI.INT) == MPI.DOUBLE_INT

# example: Datatype.Create_f90_integer Datatype.Create_f90_real Datatype.Create_f90_complex
assert MPI.Datatype.Create_f90_integer(9).Get_size() == 4  # of 9 decimal digits
assert MPI.Datatype.Create_f90_real(15, 300).Get_size() == 8
assert MPI.Datatype.Create_f90_complex(15, 300).Get_size() == 16

# example: Datatype.Match_size
assert MPI.Datatype.Match_size(MPI.TYPECLASS_REAL, 8).Get_size() == 8

# example: Datatype.envelope Datatype.Get_envelope Datatype.combiner
pair = MPI.INT.Create_contiguous(2)
assert pair.envelope == pair.Get_envelope()
assert pair.combiner == MPI.COMBINER_CONTIGUOUS

# example: Datatype.contents Datatype.Get_contents
pair = MPI.INT.Create_contiguous(2)
integers, addresses, counts, datatypes = pair.Get_contents()
assert (integers + counts, datatypes) == ([2], [MPI.INT])
assert pair.contents == pair.Get_contents()

# example: Datatype.decode
old, combiner, arguments = MPI.INT.Create_contiguous(2).decode()
assert (old, combiner, arguments) == (MPI.INT, "CONTIGUOUS", {"count": 2})

# example: Datatype.is_named Datatype.is_predefined
assert MPI.INT.is_named and MPI.INT.is_predefined
assert not MPI.INT.Create_contiguous(2).is_named

# example: Datatype.Pack Datatype.Unpack Datatype.Pack_size
room = bytearray(MPI.DOUBLE.Pack_size(3, comm))
MPI.DOUBLE.Pack(np.arange(3.0), room, 0, comm)
data = np.empty(3)
MPI.DOUBLE.Unpack(room, 0, data, comm)
assert data.tolist() == [0, 1, 2]

# example: Datatype.Pack_external Datatype.Unpack_external Datatype.Pack_external_size
room = bytearray(MPI.DOUBLE.Pack_external_size("external32", 3))
MPI.DOUBLE.Pack_external("external32", np.arange(3.0), room, 0)  # the same bytes on every machine
data = np.empty(3)
MPI.DOUBLE.Unpack_external("external32", room, 0, data)
assert data.tolist() == [0, 1, 2]

# example: Datatype.tocode Datatype.fromcode
assert MPI.Datatype.fromcode("d") == MPI.DOUBLE
assert MPI.DOUBLE.tocode() == "d"

# example: Datatype.typestr Datatype.typechar
assert np.dtype(MPI.DOUBLE.typestr) == np.dtype(MPI.DOUBLE.typechar) == float

# example: Datatype.Get_name Datatype.Set_name Datatype.name
pair = MPI.INT.Create_contiguous(2)
pair.Set_name("pair")
assert pair.Get_name() == pair.name == "pair"

# example: Datatype.Create_keyval Datatype.Set_attr Datatype.Get_attr Datatype.Delete_attr Datatype.Free_keyval
key, pair = MPI.Datatype.Create_keyval(), MPI.INT.Create_contiguous(2)
pair.Set_attr(key, "a unit")
assert pair.Get_attr(key) == "a unit"
pair.Delete_attr(key)
MPI.Datatype.Free_keyval(key)

# example: Get_address Aint_add Aint_diff
data = np.zeros(4)
first, third = MPI.Get_address(data), MPI.Get_address(data[2:])
assert MPI.Aint_diff(third, first) == 16
assert MPI.Aint_add(first, 16) == third


# example: Op.Create Op.Free
def larger(one, two, datatype):  # the result goes to the second
    two = np.frombuffer(two)
    np.maximum(np.frombuffer(one), two, out=two)


op = MPI.Op.Create(larger, commute=True)
result = np.empty(2)
comm.Allreduce(np.array([rank, -rank], float), result, op=op)
assert result.tolist() == [1, 0]
op.Free()

# example: Op.is_commutative Op.Is_commutative Op.is_predefined
assert MPI.SUM.Is_commutative() and MPI.SUM.is_commutative and MPI.SUM.is_predefined

# example: Op.Reduce_local
total = np.array([10.0])
MPI.SUM.Reduce_local(np.array([5.0]), total)  # no message
assert total[0] == 15

# example: Pickle.dumps Pickle.loads
assert MPI.pickle.loads(MPI.pickle.dumps({"any": "object"})) == {"any": "object"}

# example: Pickle.dumps_oob Pickle.loads_oob
small, large = MPI.pickle.dumps_oob([np.ones(100_000)])  # arrays stand beside the pickle
assert len(small) < 1000 and large[0].nbytes == 800_000
assert MPI.pickle.loads_oob(small, large)[0].sum() == 100_000

# example: Pickle.PROTOCOL Pickle.THRESHOLD
mine = MPI.Pickle(protocol=4, threshold=1 << 20)  # bytes from which on an array stands beside a pickle
assert (mine.PROTOCOL, mine.THRESHOLD) == (4, 1 << 20)
