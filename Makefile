# Every target works on a fresh clone: it installs what it needs into .venv first, and quickly where nothing changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests share the cores between processes; each of them computes with one thread.
JOBS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: install quickstart ui example test test-slow lint format docs wheel bench clean

install: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,all]'
	@touch $@

quickstart: install ## a few minutes: a small study of every domain, the comparison, a report
	$(BIN)/nbsr run studies/quickstart.yaml

ui: install ## MLflow on what was found
	$(BIN)/nbsr ui

example: install ## the library alone: train the Iris toy and draw how its belief sharpens
	$(BIN)/python examples/iris.py

test: install lint ## what CI runs first
	$(PYTEST) -m "not slow"

test-slow: install ## kills, restarts and several workers: one at a time, since each wants all cores
	$(BIN)/python -m pytest -m slow --timeout=900

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install ## the site, into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: install ## into dist/, with the shipped studies in it
	$(BIN)/python -m build --wheel --no-isolation

bench: install ## ratios measured side by side; see docs/benchmarks.md
	$(BIN)/python -m benchmarks.walk
	$(BIN)/python -m benchmarks.sweep
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.startup

clean: ## all that was generated, the environment included
	rm -rf $(VENV) .nbsr out site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
