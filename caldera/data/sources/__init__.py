"""Sources of samples: arrays, files, shards and streams."""
