"""The files of tests that begin first, as they take longest."""

LONGEST = {  # a minute each where workers share two cores
    "test_frozen", "test_report", "test_choice", "test_compiled", "test_certify_run", "test_stopped_runs", "test_sweep",
    "test_gradients", "test_repeated_steps", "test_agreement", "test_analysis", "test_balanced_trainer",
    "test_compiled_modes", "test_two_hosts",
}  # fmt: skip
