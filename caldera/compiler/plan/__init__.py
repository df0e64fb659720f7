"""From a graph to kernel calls over planned memory, and running them."""
