"""Lengths in, StepPlan out: pure, the same on every rank, no torch."""
