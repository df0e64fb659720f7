"""Replicas that average now and then: local SGD, elastic, gossip, ensembles."""
