# Two commands are all a user needs: `make run` and `make test`. Everything else is for changing the code.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that run tests, each one file at a time: what a file makes once, a server for one, is made by one of them.
# tests/conftest.py says in which order.
# Two more than two cores: tests of nodes, servers and Spark wait for other processes.
WORKERS ?= 4
# Kernels first, by all cores: else each process that runs tests compiles what it meets, and tests of nodes that must
# answer in time do so while others compile.
KERNELS = $(BIN)/python -m tidemark.engine.jit
PYTEST = $(KERNELS) && $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	--max-worker-restart 0 -p no:benchmark
# Of `make soak`: how long, and with which seeds.
MINUTES ?= 60
SEED ?= $(shell date +%Y%m%d)
# Of `make mutants`: which rooms, and one mutant of how many.
ROOMS ?= commit log restart wire sessions applier
SHARE ?= 10
# Of `make cases`: what is compared with, and more files and folders of tests that may run what cases ran there.
COMMIT ?= HEAD~1
ALSO ?=
# coverage is kept out of the environment: numba loads it in each process that finds it.
AUDIT := $(VENV)/audit
# So are the tools of the site, which no test needs.
SITE := $(VENV)/site
SOURCES := engine recovery replication tidemark pyspark_tidemark.py tests tools $(wildcard bench docs/site)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes; without compiled modules each takes a second longer.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup run test test-fast durations soak mutants interpreted cases check lint kernels format bench bench-check docs clean

setup: $(STAMP)

# The stamp is newer than pyproject.toml exactly when the environment holds what pyproject.toml asks for.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-input --editable '.[all]'
	@touch $@

run: setup
	$(BIN)/tidemark demo

test: setup
	$(PYTEST) -m "not soak" --durations 25

# For each change: what takes a tenth of a second and less (tests/durations.json).
test-fast: setup
	$(PYTEST) -q -m "not soak and not slow"

durations: setup
	$(PYTEST) -m "not soak" --note-durations=.pytest_cache/durations
	$(BIN)/python -m tests.durations .pytest_cache/durations

soak: setup
	$(KERNELS)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

$(AUDIT)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-input --target $(AUDIT) 'coverage>=7.6'
	@touch $@

# Changes of the program that the tests must detect (tests/audit/mutants.py).
mutants: $(AUDIT)/.installed
	for room in $(ROOMS); do TIDEMARK_COVERAGE=$(AUDIT) $(BIN)/python -m tests.audit.mutants $$room \
		--share $(SHARE) --seed $(SEED) || exit 1; done

# Kernels as plain Python, every index checked, and which of their lines the tests run (tests/audit/interpreted.py).
interpreted: $(AUDIT)/.installed
	$(BIN)/python -m tests.audit.kernel_lines $(AUDIT)

# Cases that COMMIT had and this tree has not, and lines that only they ran (tests/audit/cases.py).
cases: $(AUDIT)/.installed
	TIDEMARK_COVERAGE=$(CURDIR)/$(AUDIT) $(BIN)/python -m tests.audit.cases $(COMMIT) $(ALSO)

check: lint
	$(BIN)/python -m pytest -q tests/project
	$(BIN)/python -m tests.project.advice

# What `make check` runs besides tests.
lint: setup
	$(BIN)/python -m ruff format --check $(SOURCES)
	$(BIN)/python -m ruff check $(SOURCES)
	$(BIN)/python -m mypy --strict
	$(BIN)/python -m tools.format_document --check
	$(BIN)/python -m tools.make_faces --check

kernels: setup
	$(KERNELS)

format: setup
	$(BIN)/python -m ruff format $(SOURCES)
	$(BIN)/python -m ruff check --fix $(SOURCES)

bench: setup
	$(BIN)/python -m bench
	$(BIN)/python -m pytest bench/micro --benchmark-only -q --benchmark-columns=median,min,rounds

# Ordinary calls against the commit whose figures were kept last, or against AGAINST, in turn.
AGAINST ?=
bench-check: setup
	$(BIN)/python -m bench.check $(if $(AGAINST),--against $(AGAINST))

$(SITE)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-input --upgrade --target $(SITE) 'mkdocs-material>=9.8,<10' \
		'mkdocstrings-python>=2.0,<3'
	@touch $@

# The documents and a reference of the public names as a site in build/site; a warning is an error (mkdocs.yml).
docs: $(SITE)/.installed
	PYTHONPATH=$(SITE) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

clean:
	rm -rf $(VENV) build dist data .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
