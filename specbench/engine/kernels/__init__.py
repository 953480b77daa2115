"""The operations of layers in Triton and C, and the choice among them."""
