"""Attention and its gradients on a card: by cuDNN, by tensor cores, and by tiles that take all."""
