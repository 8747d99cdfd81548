# Every target sets up what it needs. Start with `make demo` or `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
OUT    ?= demo-report

.PHONY: help setup demo test test-all check bench format clean

help:            ## show this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

setup: $(READY)  ## create .venv with the pinned dependencies (does nothing when nothing changed)

$(READY): pyproject.toml constraints.txt
	@echo "== partita: setting up $(VENV) (first time: about 2 minutes, 1.5 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== partita: installing torch (the pinned CPU build)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@echo "== partita: installing everything else"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@echo "== partita: compiling the planner's kernels"
	@$(BIN)/python -m partita.cli.compile_kernels
	@touch $@
	@echo "== partita: ready"

demo: $(READY)   ## the main job on bundled real data: measure, plan, predict, train, compare, report
	@$(BIN)/partita demo -o $(OUT)

test: $(READY)   ## the tests (about 10 minutes on 2 cores)
	@echo "== partita: running the tests, two at a time"
	@$(BIN)/python -m pytest -n 2 -m "not slow and not machine"
	@echo "== partita: running those that need the machine for themselves"
	@$(BIN)/python -m pytest -m "machine and not slow"

test-all: $(READY)  ## the tests and the slow checks
	@echo "== partita: running all tests, the slow ones too"
	@$(BIN)/python -m pytest -n 2 -m "not machine"
	@$(BIN)/python -m pytest -m "machine"

check: $(READY)  ## ruff, mypy strict, import layers
	@echo "== partita: ruff, mypy, import layers"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(READY) ## let ruff format and mend what it can, draw the picture of the house again
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python docs/images/make_house.py

bench: $(READY)  ## every benchmark; raw JSON into benchmarks/results
	@for b in simulator prediction; do echo "== partita: benchmarks/$$b.py"; $(BIN)/python benchmarks/$$b.py --json > benchmarks/results/$$b.json || exit 1; done

clean:           ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
