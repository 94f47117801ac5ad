# Needs Python 3.11 or newer (PYTHON=… names another one) and make; the rest is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
BENCH_ARGS ?=
DRILL_ARGS ?=

.PHONY: venv demo test slow check format bench drill clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Raydiance needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/raydiance demo --output demo-out

# two at a time, then what starts clusters, one after the other (5: none of that kind was asked for);
# what kills whole clusters is left to `make drill`, what measures to `make bench`
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone and not slow and not drill and not bench and not gpu" \
	  $(PYTEST_ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -m "alone and not slow and not drill and not bench and not gpu" $(PYTEST_ARGS) || [ $$? -eq 5 ]

# every family on real ranks, and what else takes minutes
slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not drill and not bench and not gpu" $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_arrows.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# one after the other, each as it says it should be run; BENCH_ARGS=--quick for a minute each
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@mkdir -p bench-out
	@for script in load_tests/bench_*.py; do \
	  echo "== $$script"; \
	  $(BIN)/python $$script --json bench-out/$$(basename $$script .py).json $(BENCH_ARGS) || exit 1; \
	done

# some 25 minutes; DRILL_ARGS="--only node" for one, DRILL_ARGS=--random for fifty by chance
# first the drills among the tests, then every fault under load (left out where PYTEST_ARGS chooses tests)
drill: $(STAMP)
	$(BIN)/python -m pytest -m drill $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(BIN)/python load_tests/drills.py $(DRILL_ARGS))

clean:
	rm -rf $(VENV) build dist demo-out bench-out src/raydiance.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
