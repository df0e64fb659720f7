"""Graph to graph: each file one idea, `pipeline.py` their order."""
