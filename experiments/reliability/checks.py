"""CHECKS: every check of reliability with the arguments of its full count, in the order of the reliability card.

SHORT: those that need real launches, with the arguments of a short form, at most minutes each, for every change.
"""

# by the name of its finding; the words behind `python -m experiments.reliability.`
CHECKS: dict[str, str] = {
    "planned_kills": "exactly_once kills",
    "small_data": "exactly_once small",
    "digests": "digests --steps 10000 --seeds 20",
    "state_size": "state_size",
    "checkpointing_tiny": "checkpoint_cost --model tiny --rounds 40 --launches 8",
    "checkpointing_distilbert": "checkpoint_cost --model distilbert --rounds 20 --launches 3",
    "faults": "faults",
    "kills_2_ranks": "kills --count 200",
    "kills_3_ranks": "kills --count 50 --ranks 3",
    "kills_resized": "kills --count 50 --resize",
    "marked": "marked",
    "orphans": "orphans --count 20",
    "healthy": "healthy",
    "restarts": "restarts --count 50",
    "resumed_loops": "resumed_loops --count 25",
    "hostile_texts": "hostile_texts --count 200",
    "soak_1_process": "soak --steps 50000",
    "soak_2_ranks": "soak --steps 7500 --warm-up 2500 --ranks 2",
    "fuzzed_configs": "fuzz configs --count 5000",
    "fuzzed_records": "fuzz records --count 5000",
    "fuzzed_checkpoints": "fuzz checkpoints --count 1000",
    "matrix_oldest": "matrix --only oldest",
    "matrix_python312": "matrix --only python312",
    "matrix_python313": "matrix --only python313",
    "suite": "suite --count 20",
}

SHORT: dict[str, str] = {
    "faults": "faults --rank 2 --phase backward --kind segfault --kind SIGTERM --kind 'out of memory'",
    "kills_2_ranks": "kills --count 5",
    "marked": "marked --point 'while records.parquet is written'",
    "orphans": "orphans --count 2",
    "healthy": "healthy --count 2",
    "restarts": "restarts --count 2",
}
