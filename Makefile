# What one does with this checkout. `make help` prints the targets from the comments beside them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check --quiet install
# The folders with Python in them; those that are not there yet are left out.
CODE := $(wildcard src tests scripts examples bench)
# Two tests at a time unless said otherwise: JOBS=4 make test
JOBS ?= 2

.PHONY: help demo test check fmt bench ci environment clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/runtime.made  ## set up and run the main job: an incident, investigated, with a cited answer
	@$(VENV)/bin/fencepost demo
	@echo "The command is $(VENV)/bin/fencepost; README.md says what else it does."

test: $(VENV)/dev.made  ## set up and run the tests; prints branch coverage for each package
	@rm -f .coverage .coverage.* coverage.json
	@$(PYTHON) -m pytest -n $(JOBS) --dist worksteal -m "not slow" --cov --cov-report=json --cov-report=
	@$(PYTHON) scripts/coverage_by_package.py coverage.json --require core=100 --require run=100

check: $(VENV)/dev.made  ## lint, formatting, types, and who imports whom
	@$(VENV)/bin/ruff check $(CODE)
	@$(VENV)/bin/ruff format --check $(CODE)
	@$(VENV)/bin/mypy $(CODE)
	@$(VENV)/bin/lint-imports

fmt: $(VENV)/dev.made  ## format the code and mend what the linter can mend
	@$(VENV)/bin/ruff check --fix $(CODE)
	@$(VENV)/bin/ruff format $(CODE)

bench: $(VENV)/dev.made  ## run the benches; each prints a table and ends with one line of JSON
	@for name in loop sqlite "long --quick" diagnosis; do $(PYTHON) -m bench.$$name || exit 1; done

ci: ## run what CI runs
	@.ci/run

environment: $(VENV)/dev.made  ## make the virtual environment and nothing else

clean:  ## remove the virtual environment and everything that was made
	@rm -rf $(VENV) build dist .coverage .coverage.* coverage.json .hypothesis
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made anew whenever what it is made from has changed.
$(VENV)/runtime.made: pyproject.toml scripts/make_environment
	@scripts/make_environment $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/dev.made: $(VENV)/runtime.made
	@$(PIP) --editable '.[dev]'
	@touch $@
