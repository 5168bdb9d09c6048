.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
FUZZ_SECONDS := 600
# Files of tests that run at the same time; each has servers and a Spark of its own, some 3 GiB.
# One that crashes is not replaced: the run would wait for its tests for ever.
TEST_WORKERS := 2
UV_VERSION := 0.13.8
PYTEST := $(PYTHON) -m pytest
# Images of containers often set this. Jobs here start hundreds of Pythons: each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

help: ## List all jobs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## Make .venv with everything (and, as root, Java, Maven and venv if they are missing)

$(STAMP): requirements.lock pyproject.toml tools/install.sh
	UV_VERSION=$(UV_VERSION) bash tools/install.sh $(VENV)

check: install ## Lint, format, types, layers
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: install ## Format the code and mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test: install ## All tests but those that take long; starts real servers
	$(PYTEST) -m "not long" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
		--durations=30 --durations-min=10

test-unit: install ## Tests that need no server and no Spark
	$(PYTEST) -m "not integration and not e2e and not long"

test-long: install ## Tests that take long: kills and races of many rounds, long workloads
	$(PYTEST) -m long --timeout 5400

test-faults: install ## Of those, the ones that kill, cut off and fill up: 20 random moments for each stage
	$(PYTEST) -m long -k "killed or broker or lost_primaries or full_disk" --timeout 5400

fuzz: install ## Fuzz the readers of Cassandra's segments for FUZZ_SECONDS (600), led by coverage
	$(PYTHON) -m tools.fuzz_cassandra --seconds $(FUZZ_SECONDS)

shipper: ## Build dist/cdc-shipper.pyz, the program that ships segments from Cassandra nodes
	@python3 tools/build_shipper.py

demo: install ## Both databases, two DAG runs, and a row-by-row comparison
	$(PYTHON) -m demo

ui: install ## Airflow's web pages on what the demo left, with its databases running
	$(PYTHON) -m demo.ui

features: install ## Write docs/features.md from the tests' covers marks
	$(PYTHON) tools/features.py

bench: install ## Benchmarks, each against a rival on the same input
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(PYTHON) "$$file" || exit 1; done

protocol: install ## Make the descriptors of Vitess's protocol files anew
	$(PYTHON) -m uv run --no-project --with grpcio-tools==1.85.1 python tools/make_protocol.py

lock: install ## Pin all dependencies anew in requirements.lock
	$(PYTHON) -m uv pip compile --python-version 3.11 --extra dev pyproject.toml -o requirements.lock \
		--no-emit-index-url --no-annotate --generate-hashes --upgrade

clean: ## Remove what jobs made here: .venv, caches, the demo's data (downloads in ~/.cache stay)
	rm -rf $(VENV) build dist .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help install check format test test-unit test-long test-faults fuzz shipper demo ui features bench protocol lock clean
