# make demo   set up and compare DeVA with Muon, SOAP and AdamW on a small GPT
# make test   set up and run every check that CI runs
# make fuzz   run CASES=100000 random cases, or as many as SECONDS= allows, and print faults
# make format fix what ruff can fix

PYTHON ?= python3
BIN := .venv/bin
CASES ?= 100000
SECONDS ?=
SEED ?= 0
JOBS ?= $(shell nproc)

.PHONY: demo test fuzz lint format clean

demo: .venv/installed
	$(BIN)/deva compare

test: lint
	$(BIN)/python -m pytest -n auto

fuzz: .venv/installed
	PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(SEED) --jobs $(JOBS) \
		$(if $(SECONDS),--seconds $(SECONDS),--cases $(CASES))

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist runs

# The pinned torch first, so that nothing after it asks for another.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test,check]"
	touch $@
