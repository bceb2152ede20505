"""Seeing what the ranks do, from inside and outside the job."""
