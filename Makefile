# Every target sets up what it needs, into .venv and .tools, and is quick when nothing changed.

SEEDS ?= 1000
FIRST ?= 0
CHAOS_S ?= 300
CHAOS_SEED ?=
CHAOS_EVENTS ?= 2000000
HOMES ?= 100000
MINUTES ?= 10
REPORT ?= build/cluster
SCREENS ?= homes/docs/screens
ARGS ?=

UNIT := $(addprefix tests/,core local stores sinks operations telemetry)

# Looked up only when a virtual environment has to be made.
PYTHON ?= $(or $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v "$$python" && break; done),$(error Leasehold needs Python 3.11 or newer; \
	name yours: make PYTHON=/path/to/python3))

BIN := .venv/bin
VENV := .venv/.ready
SERVERS := .tools/postgres.ready .tools/azurite.ready
KAFKA := .tools/kafka.ready
JAVA := .tools/java.ready
BROWSER := .tools/chromium.ready
AXE := .tools/axe.ready
DOCS := .tools/docs.ready
WHEELS := .tools/wheels.ready
CLIENTS := .tools/eventhubs-js.ready .tools/eventhubs-java.ready .tools/cosmos-js.ready .tools/cosmos-java.ready
RUN = @. tools/env.sh &&

.DEFAULT_GOAL := help
.PHONY: help demo unit test lint format verify sim bench soak cluster screens docs clean

help:
	@echo 'Leasehold: many instances share the partitions of a feed by lease.'
	@echo
	@echo '  make demo      see it work'
	@echo '  make unit      the quick tests: no servers, no Java, under a minute'
	@echo '  make test      all tests, against real PostgreSQL, Azurite and Kafka servers;'
	@echo '                 some of them: make test ARGS="tests/core -k balance"'
	@echo '  make lint      ruff, mypy and the import rules'
	@echo '  make format    let ruff rewrite what it can'
	@echo '  make verify    simulated groups under faults: SEEDS=1000 of them, starting at FIRST=0;'
	@echo '                 replay one with its trace: make verify SEED=17 (make sim does the same)'
	@echo '  make soak      the same for much longer, then real processes under faults on every store:'
	@echo '                 CHAOS_S=300 seconds each; repeat one: CHAOS_SEED=17'
	@echo '  make cluster   the demo on three Kafka nodes, PostgreSQL, Azurite and a Spark cluster, some of'
	@echo '                 which are killed: HOMES=100000 homes for MINUTES=10; the report goes to'
	@echo '                 REPORT=build/cluster'
	@echo '  make bench     the measurements quoted in the docs'
	@echo '  make screens   pictures of every page, with HOMES=100000 homes, in SCREENS=homes/docs/screens'
	@echo '  make docs      build the documentation as a site with search, in build/site'
	@echo '  make clean     remove everything that these commands made'
	@echo
	@echo 'The first run fetches what is missing: Python packages into .venv, and Java, PostgreSQL,'
	@echo 'Azurite and Kafka into .tools (as root on Debian, Java, PostgreSQL and Chromium as system'
	@echo 'packages).'
	@echo 'Needed beforehand: Python 3.11 or newer (PYTHON=... to choose one), make, a network.'

demo: $(VENV) $(JAVA)
	$(RUN) $(BIN)/homes demo $(ARGS)

unit: $(VENV)
	$(RUN) $(BIN)/python -m pytest -n 3 --unit $(or $(ARGS),$(UNIT))

# Three workers for two cores: many tests mostly wait. Files marked takes_s begin first.
test: $(VENV) $(JAVA) $(SERVERS) $(KAFKA) $(BROWSER) $(AXE) $(CLIENTS) $(DOCS) $(WHEELS)
	$(RUN) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS)

lint: $(VENV)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/lint-imports --no-logo --config homes/pyproject.toml

format: $(VENV)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

verify: $(VENV)
	$(RUN) $(BIN)/leasehold verify $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST)) $(ARGS)

sim: verify

# Chaos runs last, and not side by side: each of them is many processes.
soak: SEEDS := 20000
soak: verify $(JAVA) $(SERVERS) $(KAFKA)
	$(RUN) LEASEHOLD_CHAOS_S=$(CHAOS_S) LEASEHOLD_CHAOS_SEED=$(CHAOS_SEED) \
		LEASEHOLD_CHAOS_EVENTS=$(CHAOS_EVENTS) \
		$(BIN)/python -m pytest -rP --timeout=0 tests/chaos

cluster: $(VENV) $(JAVA) $(SERVERS) $(KAFKA)
	$(RUN) PYTHONPATH=tests exec $(BIN)/python -m benchmarks.cluster --homes $(HOMES) --minutes $(MINUTES) \
		--report $(REPORT) $(ARGS)

bench: $(VENV) $(JAVA) $(SERVERS) $(KAFKA) .tools/eventhubs-js.ready .tools/eventhubs-java.ready .tools/cosmos-java.ready .tools/spark-kafka.ready
	$(RUN) PYTHONPATH=tests $(BIN)/python tests/support/servers.py $(BIN)/python -m benchmarks \
		--store {postgres} --store azure-blob://devstoreaccount1/leases $(ARGS)

screens: $(VENV) $(JAVA) $(BROWSER)
	$(RUN) PYTHONPATH=homes/tests/support exec $(BIN)/python tools/screens.py --homes $(HOMES) --into $(SCREENS) $(ARGS)

docs: $(VENV) $(DOCS)
	$(RUN) $(BIN)/python tools/site_pages.py

clean:
	rm -rf .venv .tools build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src homes benchmarks tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A missing or dangling interpreter (Python was upgraded) recreates the environment.
$(BIN)/python:
	@$(PYTHON) tools/set_up.py venv

$(VENV): $(BIN)/python pyproject.toml homes/pyproject.toml constraints.txt tools/set_up.py
	@$(BIN)/python tools/set_up.py python
	@touch $@

.tools/%.ready: $(VENV) tools/set_up.py
	@$(BIN)/python tools/set_up.py $*
	@touch $@
