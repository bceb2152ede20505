# ranks: 2
from mpi4py import MPI

here = MPI.COMM_SELF  # two programs in one file: what follows works the same between two jobs
if MPI.COMM_WORLD.rank == 0:  # a server
    port = MPI.Open_port()
    MPI.Publish_name("service", port)
    MPI.COMM_WORLD.Barrier()  # the name is published; two jobs would try until it is
    client = here.Accept(port)
    print("the client says", client.recv(source=0))
    client.Disconnect()
    MPI.Unpublish_name("service", port)
    MPI.Close_port(port)
else:  # a program of the same user on the same host
    MPI.COMM_WORLD.Barrier()
    port = MPI.Lookup_name("service")
    server = here.Connect(port)
    server.send("hello", dest=0)
    server.Disconnect()
