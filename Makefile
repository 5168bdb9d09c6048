.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
FUZZ_SECONDS := 600
TARGET :=
# Test files that run at the same time; each has its own servers and Spark, up to 6 GiB. Two leave cores idle.
# A crashed worker is not replaced: the run would wait for its tests forever.
TEST_WORKERS := 3
PYTEST := $(PYTHON) -m pytest
IN_WORKERS := -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Container images often set this. Jobs here start hundreds of Python processes: each would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

help: ## List all jobs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## Create .venv with all dependencies (and, as root, install Java, Maven and venv if missing)

$(STAMP): requirements.lock tools/install.lock pyproject.toml tools/install.sh
	bash tools/install.sh $(VENV)

check: install ## Lint, format, types, layers, vocabulary, and that generated docs are current
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) -m tools.vocabulary
	$(PYTHON) -m tools.reference --check
	$(PYTHON) tools/features.py --check

format: install ## Format the code and apply ruff's fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test: install ## All tests except the long ones; starts real servers
	$(PYTEST) -m "not long" $(IN_WORKERS) --durations=30 --durations-min=10 --junitxml build/junit.xml

test-unit: install ## Tests without servers and Spark
	$(PYTEST) -m "not integration and not e2e and not long" $(IN_WORKERS)

test-long: install ## Long tests: rounds of kills and races, long workloads, all examples of property tests
	$(PYTEST) -m long --timeout 5400 $(IN_WORKERS)
	CDC_EXAMPLES=all $(PYTEST) tests/unit -m "hypothesis and not long" $(IN_WORKERS)

test-all: test test-long ## All tests

test-faults: install ## Long tests that kill processes, cut connections and fill disks: 20 random moments per stage
	$(PYTEST) -m long -k "killed or broker or lost_primaries or full_disk" --timeout 5400

fuzz: install ## Coverage-guided fuzzing of readers for FUZZ_SECONDS (600); TARGET=bson fuzzes one of them alone
	$(PYTHON) -m tools.fuzz --target "$(TARGET)" --seconds $(FUZZ_SECONDS)

audit: install ## Dependencies with known flaws, licences, and secrets in the tree
	$(PYTHON) -m tools.audit

shipper: ## Build dist/cdc-shipper.pyz, which ships segments from Cassandra nodes
	@python3 tools/build_shipper.py

demo: install ## Run the demo: both databases, two DAG runs, and a row-by-row comparison
	$(PYTHON) -m demo

ui: install ## Start Airflow's UI on the demo's data, with its databases
	$(PYTHON) -m demo.ui

features: install ## Write docs/features.md from the tests' covers marks
	$(PYTHON) tools/features.py

reference: install ## Write docs/reference from docstrings
	$(PYTHON) -m tools.reference

bench: install ## Run the benchmarks, each against a rival on the same input
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(PYTHON) "$$file" || exit 1; done

protocol: install ## Regenerate the descriptors of Vitess's protocol files
	$(PYTHON) tools/make_protocol.py

COMPILE := $(PYTHON) -m uv pip compile --python-version 3.11 --no-emit-index-url --no-annotate --generate-hashes --upgrade

lock: install ## Update the pinned dependencies in requirements.lock, tools/install.lock and tools/pinned.lock
	$(COMPILE) --extra dev pyproject.toml -o requirements.lock
	$(COMPILE) tools/install.in -c requirements.lock -o tools/install.lock
	$(COMPILE) --no-deps tools/pinned.in -o tools/pinned.lock

clean: ## Remove .venv, caches, and the demo's data (downloads in ~/.cache are kept)
	rm -rf $(VENV) build dist .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help install check format test test-unit test-long test-all test-faults fuzz audit shipper demo ui features reference bench protocol lock clean
