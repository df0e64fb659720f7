"""Placement: the device of each node, for programs that run on more than one device."""
