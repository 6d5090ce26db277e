# `make demo` and `make test` work on a fresh clone: the environment is made when it is missing or
# when pyproject.toml or constraints.txt changed; a second call starts at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   := runs/demo

# The constraints are given by environment so that they bind isolated builds too.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
TORCH  := $(shell grep '^torch==' constraints.txt)

.PHONY: help env demo test test-deploy lint types format docs bench clean

help:
	@echo "make demo    compare six methods on the embedded digits; report in $(DEMO)"
	@echo "make test    run the tests"
	@echo "make test-deploy  run the tests over real processes with Flower (some minutes)"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff rewrite the files"
	@echo "make docs    make docs/methods/ from the methods; train those without a curve"
	@echo "make bench   measure the speed of the engines"
	@echo "make clean   remove the environment and caches (not the runs)"

env: $(STAMP)

# torch comes first and alone: it decides which build (CPU, CUDA) the rest has to fit. -qq leaves
# errors only.
$(STAMP): pyproject.toml constraints.txt
	@echo "making $(VENV) (once; torch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq "$(TORCH)"
	@$(BIN)/python -m pip install -qq --editable ".[dev]"
	@touch $@

# The demo before this one is kept as $(DEMO)-before, and only that one.
demo: $(STAMP)
	@if [ -e $(DEMO) ]; then rm -rf $(DEMO)-before && mv $(DEMO) $(DEMO)-before; fi
	$(BIN)/fedshift compare fedavg fedprox scaffold fedbn fedbn+mixup local \
		--data shifted-digits --seeds 2 --out $(DEMO)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

# Brings the extra into the same environment; everything else must work without it. Two files at a
# time: much of it is waiting for sites that are slow on purpose.
test-deploy: $(STAMP)
	@$(BIN)/python -m pip install -qq --editable ".[dev,flower]"
	FEDSHIFT_TEST_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/deploy

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python -m docs.make

bench: $(STAMP)
	$(BIN)/python benchmarks/speed

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
