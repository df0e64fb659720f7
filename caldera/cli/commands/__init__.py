"""One file a command. Each has a `COMMAND`; `caldera.cli.program` finds them by themselves."""
