# Two commands: make demo, make test. Each first installs into ./.venv whatever is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# overrides of a study, for example: make study ARGS="data.path=../data/sst2 data.tokenizer=../data/bert-uncased"
ARGS ?=
OUTPUTS ?= outputs

# two more than processors: many tests wait for other processes
WORKERS ?= $(shell $(PYTHON) -c "import os; print(len(os.sched_getaffinity(0)) + 2)" 2>/dev/null || echo 2)

# pip compiles every module of every package, most of which is never imported; Python compiles what is, at first use
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test naive overlap bucketed two-hosts checks checks-short checks-gpu nightly matrix peers slow study study-quick report reproduce gpu-wheels wheel lint clean

demo: $(VENV)/installed
	$(BIN)/python -m experiments.sweep experiments/demo.toml --overwrite $(ARGS)
	$(BIN)/python -m analysis outputs/demo
	$(BIN)/python -m report.build outputs/demo --output outputs/demo

test: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# data parallelism in its three forms, on two ranks: one message after backward, one a parameter, one a full bucket
naive overlap bucketed: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 2 -m experiments.train \
		experiments/examples/data_parallel.toml name=$@ sync.kind=$@ outputs=$(OUTPUTS) $(ARGS) --overwrite
	$(BIN)/python -m analysis.timeline $(OUTPUTS)/data-parallel/$@
	@echo "run: $(OUTPUTS)/data-parallel/$@"

# a quarter of an hour, as root on Linux: training over a link between two hosts, at three rates, five launches each
two-hosts: $(VENV)/installed
	mkdir -p $(OUTPUTS)
	$(BIN)/python -m experiments.benchmarks.two_hosts outputs=$(OUTPUTS) --output $(OUTPUTS)/two-hosts.json $(ARGS)

# a quarter of an hour: the checks of reliability that need real launches, in short; every example, certified; compiled models with
# inductor, and a compilation that stops all ranks; launches as jobs, and between two hosts; transformers' Trainer with mended
# gradients; a study run again; the kit for a GPU
checks: $(VENV)/installed
	$(MAKE) --jobs 2 checks-short checks-gpu
	$(BIN)/python -m pytest -m slow --numprocesses $(WORKERS) --dist loadgroup \
		tests/experiments/test_examples.py tests/training/test_compiled.py tests/training/test_compiled_modes.py \
		tests/training/test_compiled_ranks.py tests/experiments/test_slurm.py tests/experiments/test_trainer_ranks.py \
		tests/experiments/test_two_hosts.py tests/report/test_reproduce.py \
		-k "exact or before_runs or torchrun or inductors_programs_train or recompilation or new_to_a_rank or \
		jobs_on_this_machine or two_hosts or compares_a_finished"

# two halves of checks, side by side: they wait for processes much of the time
checks-short: $(VENV)/installed
	$(BIN)/python -m experiments.reliability.nightly --short
checks-gpu: $(VENV)/installed
	$(BIN)/python -m experiments.gpu --smoke --output $(OUTPUTS)/gpu-smoke

# hours: every check of reliability in full
nightly: $(VENV)/installed
	$(BIN)/python -m experiments.reliability.nightly $(ARGS)

# the suite on other Pythons and with the oldest packages, one environment after another
matrix: $(VENV)/installed
	$(BIN)/python -m experiments.reliability.matrix $(ARGS)

# the tests that need other packages, which `make test` skips; two of them pin other versions of what the rest needs
peers: $(VENV)-peers/installed
	$(VENV)-peers/bin/python -m pytest --no-skips --numprocesses $(WORKERS) --dist loadfile \
		tests/peers tests/integrations/test_pool_stream.py tests/report/test_notes_deepspeed.py \
		tests/experiments/test_verl_partitions.py tests/experiments/test_trl_grpo.py tests/monitor/test_real_tensorboard.py

slow: $(VENV)/installed
	$(BIN)/python -m pytest -m slow --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# the report's own set-up on four virtual ranks, with pretrained weights and data from the hub: three and a half hours;
# ARGS="launch=s0" does the first half of it
study: $(VENV)/installed
	$(BIN)/python -m experiments.sweep experiments/evidence/virtual.toml study=study outputs=$(OUTPUTS) \
		model.weights=pretrained $(ARGS)
	$(BIN)/python -m analysis $(OUTPUTS)/study
	$(BIN)/python -m report.build $(OUTPUTS)/study --output $(OUTPUTS)/study

# the same arms with a tiny model on embedded sentences
study-quick: $(VENV)/installed
	$(BIN)/python -m experiments.sweep experiments/quick.toml outputs=$(OUTPUTS) $(ARGS)
	$(BIN)/python -m report.build $(OUTPUTS)/quick --output $(OUTPUTS)/quick

report: $(VENV)/installed
	$(BIN)/python -m report.build

# a frozen study again, for example: make reproduce ARGS="memory data.path=../data/sst2 data.tokenizer=../data/bert-uncased"
reproduce: $(VENV)/installed
	$(BIN)/python -m report.reproduce $(ARGS)

# wheels/: what experiments.gpu needs beside torch and transformers, for an image with Python 3.12 and without a network
FOR_GPU := --quiet --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
	--platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --constraint constraints.txt --dest wheels
gpu-wheels:
	$(PYTHON) -m pip download $(FOR_GPU) pydantic tomli-w
	$(PYTHON) -m pip download $(FOR_GPU) --no-deps pulp==3.3.2 datasets dill multiprocess
	@test $$(du -sm wheels | cut -f1) -le 64 || { echo "wheels/ has more than the 64 MiB that it may have"; exit 1; }

# dist/ddpsched-*.whl, whose commands need no checkout
wheel:
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# the folder of an environment's packages
PACKAGES = $$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")

# it sees the first environment's packages, and has others' beside them
$(VENV)-peers/installed: $(VENV)/installed
	$(PYTHON) -m venv $(VENV)-peers
	echo "$(call PACKAGES,$(abspath $(VENV)))" > "$(call PACKAGES,$(VENV)-peers)/first.pth"
	$(VENV)-peers/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev,report,peers,tensorboard]"
	$(VENV)-peers/bin/python -m pip install --quiet --no-compile --no-deps verl==0.9.1 cosmos-rl==0.4.7 trl==1.16.0
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev,report]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
