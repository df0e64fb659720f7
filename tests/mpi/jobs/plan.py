"""The planner on the command line, with a link that nobody says the speed of."""

from caldera.cli import main

assert main(["plan", "lenet5", "--ranks", "16", "--speed", "10G"]) == 0
