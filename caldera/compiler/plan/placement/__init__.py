"""Where each node of a program runs, when more than one device takes part."""
