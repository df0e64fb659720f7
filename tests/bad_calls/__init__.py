"""Calls with arguments that make no sense, and files that are damaged: never a raw exception."""
