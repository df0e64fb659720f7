"""Where samples come from: arrays, files, shards, streams."""
