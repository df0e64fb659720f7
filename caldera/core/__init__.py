"""Memory of devices, tensors, and the graph of operations with its gradients."""
