# Each target makes the virtual environment if needed, installs into it, and runs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: tune test test-slow lint clean

tune: .venv/installed
	$(BIN)/tune run --kernel gemm --trials 200

test: .venv/installed-test lint
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=90

test-slow: .venv/installed-test
	$(BIN)/pytest -m slow

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-test: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ .venv/installed

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .coverage*
