"""``python -m ncclx_mpi``: run a program as one rank, or one of the commands of ``ncclx``."""

from __future__ import annotations

import sys

from ncclx_mpi.cli import main

if __name__ == "__main__":
    sys.exit(main())
