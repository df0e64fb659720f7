"""Recurrent layers: loops over steps whose bodies are one product and element-wise ops."""
