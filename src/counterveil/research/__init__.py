"""Measure how much is given away and how fast it is, attack deployments, and reproduce the paper."""
