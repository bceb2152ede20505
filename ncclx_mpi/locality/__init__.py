"""Where ranks are: in which cache and memory of which machine, and in which rack, zone and data centre.

What a rank is in is found where it runs, when somebody asks: in what Linux says of the machine and of the rank's binding, in Slurm's
environment, or in a file. Nothing here communicates; :mod:`ncclx_mpi.api.localities` brings together what ranks have found.
"""
