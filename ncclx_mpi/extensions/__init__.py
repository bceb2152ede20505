"""What communicators can do beyond MPI: one file for each, a mixin of Intracomm with what it needs."""
