"""The planner on the command line, with a link that nobody says the speed of."""

from caldera.cli import main
from caldera.parallel.planner import compression_cost

# What encoding takes is not what this is about, and takes seconds: one compression, once.
compression_cost._LONG, compression_cost._RUNS = 1 << 14, 1
compression_cost.DEFAULT_COMPRESSORS = {"float16": ("cast", {"dtype": "float16"})}
assert main(["plan", "lenet5", "--ranks", "4", "--speed", "10G"]) == 0
