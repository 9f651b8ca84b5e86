"""Benchmarks: `python -m experiments.benchmarks.<name>`."""
