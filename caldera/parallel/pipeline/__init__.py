"""Pipeline parallelism: stage partition, schedule, stage programs."""
