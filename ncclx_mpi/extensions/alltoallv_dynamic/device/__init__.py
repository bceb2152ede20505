"""``Alltoallv_dynamic`` of arrays on devices; nothing here is imported before there is one."""
