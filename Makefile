# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

BASE ?= python:3.11-slim
TAG ?= gpu-flows
EXTRAS ?= train
REQUIREMENTS ?=
PIP_ARGS := $(foreach name,PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST,$(if $($(name)),--build-arg $(name)))

.PHONY: help demo up image test quick lint clean

help:  ## Show what there is
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/train  ## Run 20 real training jobs on a simulated cluster (ARGS=--keep keeps it running)
	$(BIN)/gpu-flows demo $(ARGS)

up: $(VENV)/train  ## Start server, pool, blocks and worker here
	$(BIN)/gpu-flows up $(ARGS)

image:  ## Build our training image (BASE=image TAG=name EXTRAS=train REQUIREMENTS="package ..." ARGS=--network=host)
	docker build -f deployments/Dockerfile -t '$(TAG)' --build-arg BASE='$(BASE)' \
		--build-arg EXTRAS='$(EXTRAS)' --build-arg REQUIREMENTS='$(REQUIREMENTS)' $(PIP_ARGS) $(ARGS) .

# Many servers and engines share few cores here, and now and then one starves: a test that fails is tried
# once more, and the summary says which.
test: $(VENV)/dev lint  ## Everything: linters, quick tests, tests with real engines
	$(BIN)/python -m pytest -n 2 --dist worksteal --reruns 1 -rR $(ARGS)

quick: $(VENV)/dev  ## The quick tests alone, under two minutes
	$(BIN)/python -m pytest -n 2 -m "not slow" $(ARGS)

lint: $(VENV)/dev  ## ruff, mypy and the order of the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gpu-flows needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip

# The marks are newer than what they were made from, so an install happens once.
$(VENV)/train: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing gpu-flows and what it needs; this takes a minute or two ..."
	$(PIP) install -c constraints.txt -e '.[train]'
	@touch $@

$(VENV)/dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing gpu-flows and the tools of its developers ..."
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/train

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
