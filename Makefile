# Every target sets up what it needs, into .venv and .tools, and is quick when nothing changed.

SEEDS ?= 1000
FIRST ?= 0
CHAOS_S ?= 300
CHAOS_SEED ?=
CHAOS_EVENTS ?= 2000000
ARGS ?=

# Looked up only when a virtual environment has to be made.
PYTHON ?= $(or $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v "$$python" && break; done),$(error Leasehold needs Python 3.11 or newer; \
	name yours: make PYTHON=/path/to/python3))

BIN := .venv/bin
VENV := .venv/.ready
SERVERS := .tools/postgres.ready .tools/azurite.ready
JAVA := .tools/java.ready
BROWSER := .tools/chromium.ready
RUN = @. tools/env.sh &&

.DEFAULT_GOAL := help
.PHONY: help demo test lint format sim bench soak clean

help:
	@echo 'Leasehold: many instances share the partitions of a feed by lease.'
	@echo
	@echo '  make demo      see it work'
	@echo '  make test      all tests, against real PostgreSQL and Azurite servers;'
	@echo '                 some of them: make test ARGS="tests/core -k balance"'
	@echo '  make lint      ruff, mypy and the import rules'
	@echo '  make format    let ruff rewrite what it can'
	@echo '  make sim       simulated groups under faults: SEEDS=1000 of them from FIRST=0 on;'
	@echo '                 replay one with its trace: make sim SEED=17'
	@echo '  make soak      the same for much longer, then real processes under faults on every store:'
	@echo '                 CHAOS_S=300 seconds each; repeat one: CHAOS_SEED=17'
	@echo '  make bench     the measurements quoted in the docs'
	@echo '  make clean     remove everything that these commands made'
	@echo
	@echo 'The first run fetches what is missing: Python packages into .venv, and Java, PostgreSQL'
	@echo 'and Azurite into .tools (as root on Debian, Java, PostgreSQL and Chromium as system'
	@echo 'packages).'
	@echo 'Needed beforehand: Python 3.11 or newer (PYTHON=... to choose one), make, a network.'

demo: $(VENV) $(JAVA)
	$(RUN) $(BIN)/leasehold demo $(ARGS)

test: $(VENV) $(JAVA) $(SERVERS) $(BROWSER)
	$(RUN) $(BIN)/python -m pytest -n 2 --dist loadfile --durations=10 $(ARGS)

lint: $(VENV)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

sim: $(VENV)
	$(RUN) $(BIN)/leasehold sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST)) $(ARGS)

# Chaos runs last, and not side by side: each of them is many processes.
soak: SEEDS := 20000
soak: sim $(JAVA) $(SERVERS)
	$(RUN) LEASEHOLD_CHAOS_S=$(CHAOS_S) LEASEHOLD_CHAOS_SEED=$(CHAOS_SEED) \
		LEASEHOLD_CHAOS_EVENTS=$(CHAOS_EVENTS) \
		$(BIN)/python -m pytest -rP --timeout=0 tests/chaos

bench: $(VENV) $(JAVA) $(SERVERS)
	$(RUN) $(BIN)/python tests/servers.py $(BIN)/leasehold bench \
		--store {postgres} --store azure-blob://devstoreaccount1/leases $(ARGS)

clean:
	rm -rf .venv .tools build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A missing or dangling interpreter (Python was upgraded) makes the environment anew.
$(BIN)/python:
	@$(PYTHON) tools/set_up.py venv

$(VENV): $(BIN)/python pyproject.toml constraints.txt tools/set_up.py
	@$(BIN)/python tools/set_up.py python
	@touch $@

.tools/%.ready: $(VENV) tools/set_up.py
	@$(BIN)/python tools/set_up.py $*
	@touch $@
