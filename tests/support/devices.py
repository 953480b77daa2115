import torch

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""The CUDA device, or the CPU without one."""
