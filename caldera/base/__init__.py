"""Arguments, configuration, names, files, threads: modules without a device, graph or data."""
