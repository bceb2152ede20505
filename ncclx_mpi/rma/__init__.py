"""One-sided communication: how the memory of a window is reached, locked and fenced."""
