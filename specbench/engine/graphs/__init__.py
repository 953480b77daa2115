"""Fixed-shape functions replayed as CUDA graphs."""
