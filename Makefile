# One command for everything: each target sets up what it needs, says what it does, and does nothing twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BUILT := $(VENV)/.built
SANITIZERS := address thread
LOCKS := requirements/build.txt requirements/runtime.txt requirements/dev.txt
NATIVE := CMakeLists.txt $(shell find native -type f -not -name '*.pyc')
SHELL_SCRIPTS := .ci/run tools/debian-packages examples/demo/run examples/demo/share

# Processes must not find a simulated machine of the user's by accident.
unexport GPUSLICE_SIM

say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: setup
setup: $(BUILT) ## Make .venv with .venv/bin/gpuslice; after a change in C, build again

.PHONY: demo
demo: setup ## Run CUDA programs on simulated GPUs, alone and sharing one
	@$(BIN)/python tools/client_environments.py cudart-12.9
	$(call say,Running the demonstration)
	@examples/demo/run

.PHONY: check
check: setup ## Check style, types, layers and scripts
	@tools/debian-packages check
	$(call say,Checking style)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo 'run: make format' >&2; exit 1; }
	$(call say,Checking types)
	@$(BIN)/mypy
	$(call say,Checking layers)
	@$(BIN)/lint-imports --no-cache | tail -n 3
	$(call say,Checking shell scripts)
	@shellcheck $(SHELL_SCRIPTS)
	$(call say,Checking house rules)
	@$(BIN)/python tools/house_rules.py

.PHONY: test
test: check clients sanitizers kube ## Check, then run every test
	@tools/debian-packages test
	@tools/debian-packages cluster
	$(call say,Running the tests)
	@$(BIN)/pytest

#: On a version without claims, what needs none: the node itself, and slots.
WITHOUT_CLAIMS := tests/e2e/test_slots.py tests/e2e/test_node.py tests/e2e/test_command.py

.PHONY: test-versions
test-versions: setup kube ## Run the end-to-end tests on the oldest Kubernetes that we promise, on the usual one and on a newer one
	@tools/debian-packages cluster
	@$(BIN)/python -m tools.kube build kubernetes-1.31 kubernetes-1.37
	$(call say,Running on Kubernetes 1.31)
	@GPUSLICE_KUBE_PROGRAMS=$$($(BIN)/python -m tools.kube path 1.31) $(BIN)/pytest $(WITHOUT_CLAIMS)
	$(call say,Running on Kubernetes 1.36)
	@$(BIN)/pytest tests/e2e
	$(call say,Running on Kubernetes 1.37)
	@GPUSLICE_KUBE_PROGRAMS=$$($(BIN)/python -m tools.kube path 1.37) $(BIN)/pytest tests/e2e

.PHONY: test-fast
test-fast: setup ## Run the tests that need neither root nor Go, in less than a minute
	$(call say,Running the fast tests)
	@$(BIN)/pytest tests/unit

.PHONY: bench
bench: setup clients ## Measure what we publish
	$(call say,Measuring)
	@$(BIN)/python -m bench

.PHONY: clients
clients: $(INSTALLED) ## Install NVIDIA's libraries that the tests run on the simulator
	@$(BIN)/python tools/client_environments.py

.PHONY: kube
kube: $(INSTALLED) ## Build Kubernetes, etcd, containerd and cert-manager, once, into a cache outside the checkout
	@$(BIN)/python -m tools.kube build

.PHONY: cluster
cluster: setup kube ## Bring up a real Kubernetes with simulated GPUs and gpuslice in it
	@tools/debian-packages cluster
	$(call say,Bringing up the cluster)
	@$(BIN)/gpuslice cluster up

.PHONY: image
image: setup ## Make the container image, as an archive in dist/, with its bill of materials
	@tools/debian-packages cluster
	$(call say,Making the image)
	@$(BIN)/python -m tools.image archive

.PHONY: packages
packages: setup ## Make wheel and source distribution, in dist/
	$(call say,Making the packages)
	@$(BIN)/python -m tools.packages

.PHONY: sanitizers
sanitizers: $(addprefix sanitizer-,$(SANITIZERS)) ## Build the native libraries with sanitizers, for tests

.PHONY: $(addprefix sanitizer-,$(SANITIZERS))
$(addprefix sanitizer-,$(SANITIZERS)): sanitizer-%: $(INSTALLED)
	$(call say,Building the native libraries with the $* sanitizer)
	@[ -f build/$*/build.ninja ] || $(BIN)/cmake -S . -B build/$* -G Ninja --log-level=WARNING \
	    -D CMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" -D Python3_EXECUTABLE="$(abspath $(BIN))/python" \
	    -D CMAKE_BUILD_TYPE=RelWithDebInfo -D GPUSLICE_SANITIZE=$*
	@$(BIN)/cmake --build build/$* -- --quiet

.PHONY: format
format: $(INSTALLED) ## Format the Python sources
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

.PHONY: lock
lock: $(INSTALLED) ## Resolve and hash every dependency anew
	@$(BIN)/python tools/lock.py

.PHONY: clean
clean: ## Remove what was built; keep downloads
	$(call say,Removing .venv and build)
	@rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(INSTALLED): $(LOCKS)
	@tools/debian-packages build
	$(call say,Installing hash-locked dependencies into $(VENV))
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --require-hashes $(addprefix -r ,$(LOCKS))
	@touch $@

$(BUILT): $(INSTALLED) pyproject.toml cluster/pyproject.toml $(NATIVE)
	$(call say,Building the native libraries and installing gpuslice)
	@$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable . --editable ./cluster
	@touch $@
