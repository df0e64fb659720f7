"""Elementwise loops, fused bodies, and many small ones in one launch."""
