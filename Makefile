# Every target works on a fresh clone: it installs what it needs into .venv first, and quickly where nothing changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install quickstart test test-slow lint format bench clean

install: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

quickstart: install ## train the Iris toy and draw how its belief sharpens
	$(BIN)/python examples/iris.py

test: install lint ## what CI runs first
	$(BIN)/python -m pytest -m "not slow"

test-slow: install
	$(BIN)/python -m pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## ratios measured side by side; see benchmarks/README.md
	$(BIN)/python -m benchmarks.walk

clean: ## all that was generated, the environment included
	rm -rf $(VENV) .nbsr out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
