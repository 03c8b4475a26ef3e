# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup engine demo test unit e2e lab soak lint types clean help

help: ## Show what there is
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(VENV)/.stamp ## Make .venv with pdctl and the tools of development, without engines

$(VENV)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,redis,report,otel]'
	@touch $@

demo: setup ## Start a real local pair and the router, prove reuse, say what was proven
	$(BIN)/pdctl up --file examples/local-cpu.yaml --yes

test: setup ## All checks and tests; prints the time of each part
	@BIN=$(BIN) sh tests/run.sh lint unit e2e lab

unit: setup ## Fast tests, no engines
	@BIN=$(BIN) sh tests/run.sh unit

e2e: setup ## Tests on two real vLLM servers
	@BIN=$(BIN) sh tests/run.sh e2e

lab: setup ## Several hosts in network namespaces (root only)
	@BIN=$(BIN) sh tests/run.sh lab

soak: setup ## The long ones; each has a short twin in `make test`
	@BIN=$(BIN) sh tests/run.sh soak

lint: setup ## Style, types and import rules
	@BIN=$(BIN) sh tests/run.sh lint

clean: ## Remove what setup and the tests made in this folder
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
