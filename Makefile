# make quickstart   a virtual environment, the package, and the main job: watch a model learn
# make test         a virtual environment with the test tools, and the tests
# make check        format, lint, types, import rules, size rules, tests: what CI runs
# PIP_ARGS passes options to pip, for example PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
VENV_TEST := .venv-test
PY := $(VENV_TEST)/bin/python
SOURCES := cohort tests tools bench examples
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help quickstart test slow check static format lint types imports size bench clean

help:
	@sed -n 's/^# //p' Makefile

quickstart: $(VENV)/.ready
	$(VENV)/bin/cohort train

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q $(PIP_ARGS) -c constraints.txt torch numpy
	$(VENV)/bin/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e .
	touch $@

$(VENV_TEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_TEST)
	$(PY) -m pip install -q $(PIP_ARGS) -c constraints.txt torch numpy
	$(PY) -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[test]'
	touch $@

test: $(VENV_TEST)/.ready
	$(PY) -m pytest -n 2

slow: $(VENV_TEST)/.ready
	$(PY) -m pytest -n 2 -m slow

check: static test

static: format lint types imports size

format: $(VENV_TEST)/.ready
	$(PY) -m ruff format --check -q .

lint: $(VENV_TEST)/.ready
	$(PY) -m ruff check -q .

types: $(VENV_TEST)/.ready
	$(PY) -m pyright --pythonpath $(PY)

imports: $(VENV_TEST)/.ready
	$(VENV_TEST)/bin/lint-imports --no-cache

size: $(VENV_TEST)/.ready
	$(PY) tools/size_rules.py

bench: $(VENV_TEST)/.ready
	$(PY) -m bench.run

clean:
	rm -rf $(VENV) $(VENV_TEST)
