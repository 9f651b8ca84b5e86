"""The same plans inside other people's loops."""
