"""What emits LLVM code for Numba: imported when something has to be compiled, never before."""
