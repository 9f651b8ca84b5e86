"""Studies as TOML, the sweep that runs them, and benchmarks."""
