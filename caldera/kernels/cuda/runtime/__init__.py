"""The driver, NVRTC, launching, libraries, and measuring on a GPU."""
