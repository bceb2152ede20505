"""What runs on the GPU: kernels, how they are compiled without one, and the driver functions that launch them."""
