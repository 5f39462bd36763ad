# On a fresh machine, `make demo` and `make test` are all that is needed: both install what they use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

BASE ?= python:3.11-slim
TAG ?= gpu-flows
EXTRAS ?= train
REQUIREMENTS ?=
PIP_ARGS := $(foreach name,PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST,$(if $($(name)),--build-arg $(name)))

.PHONY: help demo up image test quick chaos lint clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/train  ## Run 20 real training jobs on a simulated cluster (ARGS=--keep keeps it running)
	$(BIN)/gpu-flows demo $(ARGS)

up: $(VENV)/train  ## Start a Prefect server, a pool, its blocks and a worker on this machine
	$(BIN)/gpu-flows up $(ARGS)

image:  ## Build the training image (BASE=image TAG=name EXTRAS=train REQUIREMENTS="package ..." ARGS=--network=host)
	docker build -f deployments/Dockerfile -t '$(TAG)' --build-arg BASE='$(BASE)' \
		--build-arg EXTRAS='$(EXTRAS)' --build-arg REQUIREMENTS='$(REQUIREMENTS)' $(PIP_ARGS) $(ARGS) .

test: $(VENV)/dev lint  ## Run everything: linters, quick tests, tests with real engines
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

quick: $(VENV)/dev  ## Run the quick tests, in under two minutes
	$(BIN)/python -m pytest -n 2 -m "not slow" $(ARGS)

chaos: $(VENV)/dev  ## Break workers, servers, disks and networks for CHAOS_MINUTES=45; a line with counts for each case
	CHAOS_MINUTES=$(or $(CHAOS_MINUTES),45) $(BIN)/python -m pytest tests/chaos --tb=short $(ARGS)

lint: $(VENV)/dev  ## Run ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpu-flows needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip

# These empty files record an install, so that it runs again only after its inputs change.
$(VENV)/train: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing gpu-flows and what it needs; this takes a minute or two ..."
	$(PIP) install -c constraints.txt -e '.[charts,train]'
	@touch $@

$(VENV)/dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing gpu-flows and its development tools ..."
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/train

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
