# The only two commands you need are `make demo` and `make test`; each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# without the torchvision that they ask for, do not need, and cannot import next to a CPU build of torch
LAPLACE := laplace-torch curvlinops-for-pytorch backpack-for-pytorch asdfghjkl
# a second opinion on calibration errors in a test; without numpy 2, pyro and gpytorch, which netcal.metrics does not import
NETCAL := netcal
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-lowest lint format clean

demo: $(VENV)/demo.done  ## train on digits, print a table, write demo.png
	$(BIN)/bndl demo

test: $(VENV)/dev.done  ## lint, types and all tests
	$(MAKE) --no-print-directory lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-lowest:  ## all tests with the oldest dependencies that pyproject.toml allows
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt torch==2.13.0
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable ".[dev]"
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt --no-deps $(LAPLACE) $(NETCAL)
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-lowest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/%.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	test $* != dev || $(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps $(LAPLACE) $(NETCAL)
	touch $@
