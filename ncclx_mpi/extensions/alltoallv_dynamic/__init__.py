"""``Alltoallv_dynamic``: all-to-all whose counts are read when it executes, on hosts, on devices and in streams."""
