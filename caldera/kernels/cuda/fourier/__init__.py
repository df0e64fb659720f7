"""Fourier transforms: cuFFT, and Stockham passes of our own."""
