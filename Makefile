# `make demo` and `make test` are all that a newcomer needs; both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH := .venv-bench

.PHONY: demo test test-slow check bench mutants clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt torch
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/timonel demo

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

check: $(READY)
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

# Its own virtual environment, with the peers: they are measured beside the package and never its dependency.
$(BENCH)/.ready: pyproject.toml constraints.txt bench/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	echo '*' > $(BENCH)/.gitignore
	$(BENCH)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH)/bin/python -m pip install --constraint constraints.txt torch
	$(BENCH)/bin/python -m pip install --constraint constraints.txt --editable . --requirement bench/requirements.txt
	touch $@

bench: $(BENCH)/.ready
	$(BENCH)/bin/python -m bench $(WORKLOADS) $(if $(WORKLOADS),,--write docs/benchmarks.md)

mutants: $(READY)
	$(BIN)/python tests/mutants.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
