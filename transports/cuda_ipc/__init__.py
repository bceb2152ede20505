"""Device memory of the other processes of a node, mapped once and kept mapped (CUDA's legacy IPC)."""
