"""Attention and its gradients on a GPU: by cuDNN, by tensor cores, and by tiles for all other
cases.
"""
