"""All-to-all with counts that are read when it executes: planning and copying, for CPU and GPU.

Files: ``layout`` (the structures), ``plan`` (which bytes go where), ``copy`` (moving them on the GPU), ``plan_and_copy`` (the kernel that
does both), ``twins`` (the same in NumPy, for tests).
"""
