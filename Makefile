# `make demo`, `make test` and `make reproduce` set everything up by themselves, in .venv.
# python3, or the system's where that is faster: the tests take an eighth less.
PYTHON ?= $(shell python3 tools/interpreter.py)
VENV := .venv
RUN := $(VENV)/bin

# Hundreds of processes are started: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup tools demo test check tests style types test-cuda accept-card-sources lint docs \
	wheel benchmark reproduce clean

setup: $(VENV)/installed
tools: $(VENV)/tools

$(RUN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(RUN)/python
	$(RUN)/python -m pip install --quiet --editable .
	touch $@

# What only the tests need is larger than all the rest: the demo does without it. Only some of it is
# ever imported, and compiled then.
$(VENV)/tools: pyproject.toml | $(RUN)/python
	$(RUN)/python -m tools.install --editable '.[dev]'
	touch $@ $(VENV)/installed

# MPICH in a folder of its own: its mpiexec would take the place of Open MPI's. Where there is no
# wheel of it, the tests that need it are skipped and say so.
$(VENV)/mpich: | $(RUN)/python
	-$(RUN)/python -m tools.install --no-deps --only-binary :all: --prefix $@ mpich

# axe-core, which checks pages for those who do not see or use a mouse, out of a wheel whose other
# parts are not needed.
$(VENV)/axe: | $(RUN)/python
	-$(RUN)/python -m tools.install --no-deps --target $@ axe-playwright-python

demo: setup
	$(RUN)/caldera train --data digits --out out
	$(RUN)/caldera report out

# The papers' claims again, in minutes. Peers and MPI take part where they are installed:
# .venv/bin/pip install -e '.[bench,mpi]'.
reproduce: setup
	mkdir -p out
	$(RUN)/caldera reproduce --quick --html out/reproduce.html

lint: style types

style: tools
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: tools
	$(RUN)/mypy

# Style first, because it is quick; types beside the tests, because they need one core alone, and
# after them what else is asked for (BESIDE=wheel).
test: style
	$(MAKE) --no-print-directory --jobs=2 types tests $(BESIDE)

tests: tools $(VENV)/mpich $(VENV)/axe
	$(RUN)/python -m pytest -n auto --dist worksteal --durations=25

# Before a commit, in less than a minute: the tests that are nearest to what was changed.
check: lint
	$(RUN)/python -m tools.nearest_tests | xargs -r $(RUN)/python -m pytest -n auto --for-seconds 35

# Of one version beside those of others: python -m tools.docs FOLDER --version 0.1.0
docs: tools
	$(RUN)/python -m tools.docs out/docs

# For a machine with a GPU: its own Python, which has the packages of caldera[cuda], no network.
test-cuda:
	python3 -m pytest tests/card

# After a change of CUDA sources: those that NVRTC accepts need not be shown to it again.
accept-card-sources: tools
	$(RUN)/python -m pytest -n auto tests/card --accept-card-sources

# What `pip install` would get: everything the package needs, and nothing else.
wheel: tools
	$(RUN)/python -m tools.wheel

benchmark: tools
	$(RUN)/python benchmarks/training/overhead.py
	$(RUN)/python benchmarks/data/input.py
	$(RUN)/python benchmarks/data/pipeline_profiles.py
	$(RUN)/python benchmarks/training/progress.py

clean:
	rm -rf $(VENV) out build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .test_cache
