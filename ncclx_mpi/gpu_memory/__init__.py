"""Memory of devices, seen from the host: pointers, pinned staging memory, streams and copies. No kernels."""
