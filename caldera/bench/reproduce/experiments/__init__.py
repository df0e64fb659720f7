"""One file an experiment, or a few that belong together; each has a list `EXPERIMENTS`."""
