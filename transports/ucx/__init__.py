"""Ranks of other hosts, by UCX: RDMA where the library that is found has verbs, TCP where it has not."""
