"""From samples to batches: loaders, the pipeline that tunes itself, prefetching."""
