"""Sockets of ours between hosts: what UCX does over TCP, without the copies and calls that a general library needs."""
