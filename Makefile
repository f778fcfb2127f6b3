# make quickstart   install into .venv and run the main job: one model per phase, table, picture,
#                   report (SEED=1 for another seed, in runs/quickstart-1; OUT=folder for another place)
# make test         install into .venv and run every check
# make check        format, lint, import contracts, types and tests in the environment that is there
# make slow-tests   the tests that start a cluster or several programs, run the notebooks or train long
# make fast-tests   the tests that start no other program: a few minutes
# make newest-lens  the fast tests that run a model, beside the newest TransformerLens 4;
#                   LENS_TESTS=tests/models for some, LENS_TESTS=tests for all
# make claims       judge the papers' claims on the committed tables, and fill the pages
# make docs         build the documentation into site/; open site/index.html
# make public-api   write tests/project/public_api.txt anew, after a change of the API that is meant
# make evidence     the measurements in docs/evidence that are missing; remove one to make it anew

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?= --no-compile
PYTEST_FLAGS ?=
SEED ?= 0
OUT ?= runs/quickstart$(if $(filter-out 0,$(SEED)),-$(SEED))
BIN := $(VENV)/bin
# A test process a core, since each has to import everything; it takes a file at a time, files of few
# long tests not last.
SPREAD = --numprocesses $$(getconf _NPROCESSORS_ONLN) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt $(PIP_FLAGS)

# Long tests without a model: of tables, of texts and of the documentation.
WITHOUT_MODEL = $(addprefix papers/test_,claims.py common.py pages.py verdict_score.py) \
	$(addprefix realistic/test_,corpus.py prontoqa.py scan.py) project/test_docs.py
LENS_TESTS ?= $(WITHOUT_MODEL:%=--ignore=tests/%)

LARGEST = import anchor_interp.models.transformer, matplotlib.pyplot, pandas, pyarrow.parquet, scipy.stats, sklearn.metrics

unexport PYTHONDONTWRITEBYTECODE # with it every process would compile all that it imports

.PHONY: quickstart test check format-check lint types tests slow-tests fast-tests newest-lens claims docs public-api evidence clean

quickstart: $(VENV)/.installed
	$(BIN)/anchor-interp quickstart --out $(OUT) --seed $(SEED)

test: $(VENV)/.installed-dev
	$(MAKE) check

check: format-check lint
	$(MAKE) --jobs=2 types tests

format-check:
	$(BIN)/ruff format --check .

lint:
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types:
	$(BIN)/mypy

tests:
	$(BIN)/pytest -m "not slow" $(SPREAD) --durations 25

slow-tests:
	$(BIN)/pytest -m slow $(SPREAD) --durations 25

fast-tests:
	$(BIN)/pytest -m "not slow" $(PYTEST_FLAGS) $(SPREAD) \
		$(addprefix tests/,util tasks realistic models behaviour runs interventions analysis pages papers)

newest-lens: $(VENV)/.installed-dev # laid over the environment, which keeps version 3.9
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(VENV)/lens-4 'transformer-lens>=4,<5'
	PYTHONPATH=$(abspath $(VENV))/lens-4 $(BIN)/pytest -m "not slow" $(SPREAD) $(LENS_TESTS)

claims: $(VENV)/.installed
	$(BIN)/python experiments/fill_pages.py

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

public-api: $(VENV)/.installed-dev
	$(BIN)/python tests/project/public_api.py

# One rule a file. Each command prints its JSON, or keeps what it has under .cache/ and goes on from
# there when it is started again; docs/evidence/README.md says what a file shows and how long it takes.
EVIDENCE := train_step train_step_without_onednn faults fuzz recipes recipes_search \
	circuits circuit_sizes residual_edges masks interchange analysis attribution_patching gpt2_shape scaling sweep sweep_long batched sweep_faults \
	claims verdict busy sequences language_speed specimens

evidence: $(EVIDENCE:%=docs/evidence/%.json)
	$(BIN)/python benchmarks/tables.py

train_step = $(BIN)/python benchmarks/train_step.py --json
train_step_without_onednn = $(train_step) --without-onednn --cases tiny paper-1head
faults = PYTHONPATH=tests/helpers:experiments $(BIN)/python tests/robustness/faults.py
fuzz = PYTHONPATH=tests/helpers:experiments $(BIN)/python tests/robustness/fuzz.py --minutes 30 --json .cache/fuzz.json && cat .cache/fuzz.json
# measurements of runs: a module of experiments/evidence
measure = PYTHONPATH=experiments $(BIN)/python -m evidence
recipes = $(measure).recipes judge
recipes_search = $(measure).recipes search
interchange = $(measure) interchange
analysis = $(BIN)/python benchmarks/analysis.py --json
attribution_patching = $(BIN)/python benchmarks/attribution_patching.py --json
scaling = $(BIN)/python benchmarks/scaling.py --json
sweep = $(BIN)/python benchmarks/sweep.py --json
sweep_long = $(sweep) --parts throughput --ways "2 workers" --steps 1000 --turns 2
batched = $(BIN)/python benchmarks/batched.py --json
busy = $(BIN)/python benchmarks/busy.py --json
sequences = $(BIN)/python benchmarks/sequences.py --json
language_speed = $(BIN)/python benchmarks/language.py --json
sweep_faults = PYTHONPATH=tests/helpers:experiments $(BIN)/python tests/robustness/sweep_faults.py
claims = $(BIN)/python experiments/fill_pages.py --json
# not in EVIDENCE: it needs RELEASED_CODE=PATH, a checkout of the papers' released code
released_code = $(train_step) --released-code "$(RELEASED_CODE)"
# nor these four: they need RUNS=PATH, a folder of run folders, and the first one the extra devinterp
learning_coefficient = $(measure) learning_coefficient --runs "$(RUNS)"
cells = $(measure) cells --runs "$(RUNS)"
nearby = $(measure) nearby --runs "$(RUNS)"
failures = $(measure) failures --runs "$(RUNS)"
# nor these two: they need a GPU
gpu = $(BIN)/python benchmarks/gpu.py --paper runs/paper --json
batched_cuda = $(BIN)/python benchmarks/batched.py --device cuda --models 1 64 256 --turns 3 --alone 2 --json
# this one needs BEFORE=PATH, a checkout of the commit that the README of the evidence names
checkouts = $(BIN)/python benchmarks/checkouts.py "$(BEFORE)" .
gpt2_shape = $(BIN)/python benchmarks/gpt2_shape.py
circuits = $(measure) circuits
circuit_sizes = $(measure) circuit_sizes
residual_edges = $(measure) residual_edges
masks = $(measure) masks
specimens = $(measure) specimens
verdict = $(measure).verdict

docs/evidence/%.json: | $(VENV)/.installed-dev
	@mkdir -p $(@D)
	$($*) > $@.partial
	@mv $@.partial $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade 'pip>=25.1' # dependency groups

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/bin/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable . --group dev
	@$(BIN)/python -c "$(LARGEST)" # compiled here once, not in every test process
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist site
