"""From an op and a device to the code that runs it."""
