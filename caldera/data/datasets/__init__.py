"""Data sets by name: digits, MNIST, CIFAR, tables, folders of images."""
