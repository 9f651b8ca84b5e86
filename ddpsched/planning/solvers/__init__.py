"""Solvers, arrays in and arrays out: ``allocation``, counts over windows, and ``partition``, a batch over ranks."""
