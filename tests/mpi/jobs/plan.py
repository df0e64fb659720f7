"""The planner on the command line, with a link that nobody says the speed of."""

from caldera.cli import main
from caldera.planner import compression_cost

# What encoding takes is not what this is about, and takes seconds on long gradients.
compression_cost._LONG, compression_cost._RUNS = 1 << 14, 1
assert main(["plan", "lenet5", "--ranks", "4", "--speed", "10G"]) == 0
