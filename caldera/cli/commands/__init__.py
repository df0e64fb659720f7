"""One module per command. Each defines a `COMMAND`, which `caldera.cli.program` discovers."""
