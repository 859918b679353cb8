# make demo   set up and compare DeVA with Muon, SOAP and AdamW on a small GPT
# make test   set up and run every check
# make portability   run the numerical tests as other processors would; CORE=1 is the short form
# make fuzz   run CASES=100000 random cases, or as many as SECONDS= allows, and print faults
# make docs   build the documentation site into site/
# make format fix what ruff can fix
# make dist   build both distributions, and check them as a user would get them
# make tag    check that TAG=v1.2.3 is the tag of this version

PYTHON ?= python3
BIN := .venv/bin
CASES ?= 100000
SECONDS ?=
SEED ?= 0
JOBS ?= $(shell nproc)
# Bytecode is written for what is imported, not at installation: torch alone has thousands of files.
# Without it every one of the hundreds of processes here would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	--constraint constraints.txt

.PHONY: demo docs test types tests portability fuzz lint format dist tag clean

demo: .venv/lab
	$(BIN)/deva compare

# The types are checked beside the tests, which leave a core idle now and then.
test: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory -j2 types tests

types: .venv/test
	$(BIN)/mypy

tests: .venv/test
	$(BIN)/python -m pytest -n auto --dist worksteal

portability: .venv/test
	$(BIN)/python tests/portability.py $(if $(CORE),--core)

fuzz: .venv/test
	PYTHONPATH=tests $(BIN)/python -m fuzz --seed $(SEED) --jobs $(JOBS) \
		$(if $(SECONDS),--seconds $(SECONDS),--cases $(CASES))

docs: .venv/docs
	$(BIN)/mkdocs build --strict

lint: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: .venv/dist
	$(BIN)/python tests/release.py dist

tag:
	$(PYTHON) tests/release.py tag $(TAG)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist runs site

# What the demo needs. The pinned torch first, so that nothing after it asks for another.
.venv/lab: pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) torch numpy
	$(INSTALL) --editable . --editable lab
	touch $@

# What the checks need besides, in the same environment.
.venv/test: .venv/lab
	$(INSTALL) --editable ".[test,check]" --editable lab
	touch $@

# What builds and checks the distributions, which are installed in an environment of their own.
.venv/dist: constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) build mypy twine
	touch $@

# What the documentation site needs besides.
.venv/docs: .venv/lab
	$(INSTALL) --editable ".[docs]"
	touch $@
