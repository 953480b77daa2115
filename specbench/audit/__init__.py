"""`specbench audit`: are the outputs of a run lossless?"""
