"""Ranks that live on between the cells of a notebook: ``%load_ext ncclx_mpi``, then ``%%ranks 4``.

Three kinds of processes, from left to right::

    kernel                      fork server             rank 0, 1, ...
    magics -> cell -> session   server                  rank -> shell (IPython)
                |  screen          |                      |
                |  lifeline, what ranks write to 1 and 2  |
                +------------------+--- pipes of the job -+
                +--------- one connection a rank ---------+  cells there; results, printed text, figures back

Only the fork server and the ranks import the engine. IPython is imported by the extension, and by those two.
"""
