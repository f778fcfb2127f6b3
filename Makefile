# make quickstart   install into .venv and run the main job: one model per phase, table, picture
# make test         install into .venv and run every check
# make check        format, lint, types and tests in the environment that is there
# make evidence     the measurements in docs/evidence that are missing; remove one to make it anew

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt $(PIP_FLAGS)

.PHONY: quickstart test check format-check lint types tests evidence clean

quickstart: $(VENV)/.installed
	$(BIN)/anchor-interp quickstart --out runs/quickstart

test: $(VENV)/.installed-dev
	$(MAKE) check

check: format-check lint types tests

format-check:
	$(BIN)/ruff format --check .

lint:
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

tests:
	$(BIN)/pytest

evidence: docs/evidence/train_step.json docs/evidence/train_step_without_onednn.json docs/evidence/fuzz.json

docs/evidence/fuzz.json: | $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz.py --minutes 30 --json $@

docs/evidence/train_step_without_onednn.json: FLAGS := --without-onednn --cases tiny paper-1head
docs/evidence/%.json: | $(VENV)/.installed-dev
	@mkdir -p $(@D)
	$(BIN)/python benchmarks/train_step.py --json $(FLAGS) > $@.partial
	@mv $@.partial $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/bin/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
