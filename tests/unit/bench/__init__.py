"""Tests of the room for honest measurement."""
