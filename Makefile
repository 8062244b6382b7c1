# Every target installs what it needs into .venv, with the versions of constraints.txt.

PYTHON ?= python3
WORKERS ?= 2
SPHINXOPTS ?=
SPEED := not slow
TEST_EXTRAS := report,data,flows,frechet,onnx,hub,tensorboard,mlflow,pandas,test
TEST_ALL_EXTRAS := $(TEST_EXTRAS),ray,slurm

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# without files of bytecode, every process of the tests rewrites and compiles all sources
unexport PYTHONDONTWRITEBYTECODE

# $(call install,EXTRAS): editable, quiet, pinned; the build backend is pinned, too
install = @echo "installing unbraid[$(1)] into .venv (minutes the first time)" && \
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install -qq -e ".[$(1)]" && touch $@

.PHONY: help demo test test-all lint types layers unit compiled docs clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo "make demo      train a small model on rendered sprites, score it, write runs/demo/report.html and explore.html"
	@echo "make test      lint, types, layers and the quick tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      ruff check and ruff format --check"
	@echo "make docs      build the documentation into docs/_build"
	@echo "make clean     remove .venv, caches and built files; runs/ is kept"
	@echo "PYTHON=…       the interpreter that .venv is made with (3.11 or newer; now $(PYTHON))"
	@echo "WORKERS=…      parallel test processes (now $(WORKERS))"

demo: .venv/.demo
	$(BIN)/unbraid demo

test: lint types layers unit compiled

test-all: SPEED := slow or not slow
test-all: .venv/.test-all lint types layers unit compiled

lint: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.test
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

layers: .venv/.test
	$(BIN)/lint-imports

# a test file stays in one process, which makes its fixtures once; tests/conftest.py says which files come first
unit: .venv/.test
	OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist loadscope --no-loadscope-reorder -m "not compiles and ($(SPEED))"

# pytest leaves with 5 when it selected nothing, as when every test that compiles is slow
compiled: .venv/.test
	@files=$$(grep -rls --include='*.py' 'mark\.compiles' tests); test -z "$$files" || \
		UNBRAID_TYPECHECK=0 $(PYTEST) -n $(WORKERS) -m "compiles and ($(SPEED))" $$files || test $$? -eq 5

docs: .venv/.docs
	$(BIN)/python -m sphinx -b html $(SPHINXOPTS) docs docs/_build/html
	@echo "open docs/_build/html/index.html"

clean:
	rm -rf .venv dist build docs/_build docs/_live docs/options.md docs/results .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "unbraid needs Python 3.11 or newer, and '$(PYTHON)' is not; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv

.venv/.demo: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(call install,report)

.venv/.test: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(call install,$(TEST_EXTRAS))

# after .venv/.test, not beside it: with make -j two pips would write into one environment
.venv/.test-all: pyproject.toml constraints.txt | .venv/pyvenv.cfg .venv/.test
	$(call install,$(TEST_ALL_EXTRAS))

.venv/.docs: pyproject.toml constraints.txt | .venv/pyvenv.cfg
	$(call install,docs)
