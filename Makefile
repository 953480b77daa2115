# From a fresh clone to the table: make run. It needs Python 3.11 or newer, with venv and pip.
.DEFAULT_GOAL := help
.PHONY: help setup run test check gpu reports gate baseline

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(VENV)/.kernels

# The first of these that is new enough makes the environment: make setup PYTHON=/path/to/python
PYTHON ?= python3.11 python3.12 python3.13 python3 python

help:
	@echo "make setup   create $(VENV) and install specbench with the tested versions"
	@echo "make run     set up, then measure every method on the embedded model"
	@echo "make test    set up, then run all tests"
	@echo "make check   set up, then ruff, mypy and the import order"
	@echo "make gpu     set up, then run the suite for a GPU on models in real shapes"
	@echo "make gate    set up, then hold a small run against .ci/baseline"
	@echo "make baseline record .ci/baseline anew, after a change that is meant"
	@echo "make reports set up, then render the report of every recorded run anew"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/pip || { \
	  for python in $(PYTHON); do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	        >/dev/null 2>&1; then \
	      echo "Creating $(VENV) with $$("$$python" --version)"; \
	      exec "$$python" -m venv $(VENV); \
	    fi; \
	  done; \
	  echo "None of these is a Python 3.11 or newer with venv and pip: $(PYTHON)." >&2; \
	  echo "Install one (Debian, Ubuntu: apt install python3 python3-venv)," >&2; \
	  echo "or name yours: make setup PYTHON=/path/to/python3.12" >&2; \
	  exit 1; }
	@echo "Installing into $(VENV). The first time takes some minutes: torch is large."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: setup
	$(BIN)/specbench run

test: $(KERNELS)
	$(BIN)/python -m pytest -m "not net"

# Triton runs the kernels on the CPU too, slowly; it is large, and only the tests need it there.
$(KERNELS): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,kernels]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy specbench methods tests
	$(BIN)/python -m pytest -q tests/packaging/test_import_order.py

reports: setup
	@for run in results/recorded/*/; do \
	  name=$$(basename "$$run"); \
	  $(BIN)/specbench report "$$run" --out "reports/$$name" >/dev/null || exit 1; \
	done

# A small run of every method, and the one it must not fall behind. MAT is the same on any machine;
# near-ties may turn one answer of a method.
GATE_RUN := $(BIN)/specbench run --limit 3 --max-new-tokens 64 --device cpu --quiet

gpu: setup
	$(BIN)/python -m benchmarks.gpu

gate: setup
	rm -rf build/gate
	$(GATE_RUN) --output build/gate >/dev/null
	$(BIN)/specbench check build/gate --baseline .ci/baseline --speed never --max-mismatch 5% \
	  --junit build/gate/gate.xml

baseline: setup
	rm -rf build/baseline
	$(GATE_RUN) --output build/baseline
	mkdir -p .ci/baseline
	cp build/baseline/run.json build/baseline/samples.jsonl .ci/baseline
