"""Decoder layers in few, large operations: in torch, and as Triton kernels."""
