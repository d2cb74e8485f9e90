PY ?= python3
VENV ?= .venv
DEMO_MIXERS = softmax,csp,sliceformer,tssa,butterfly,sinkhorn
export OMP_WAIT_POLICY ?= PASSIVE
# Two processes with one thread each finish sooner than one process with two.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 --dist worksteal

.PHONY: demo test test-all lint bench clean

KERNELS = setup.py $(wildcard src/rifflemix/ops/native/*.cpp src/rifflemix/ops/native/*.h)

$(VENV)/.ok: pyproject.toml constraints.txt $(KERNELS)
	$(PY) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e ".[test]"
	@touch $@

# Six mixers, one backbone, real handwritten digits; a few minutes on two cores.
demo: $(VENV)/.ok
	$(VENV)/bin/rifflemix compare --task digits --mixers $(DEMO_MIXERS) --seeds 2 --out runs/demo

# Everything but the slow tests; under ten minutes on two cores.
test: $(VENV)/.ok
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.ok
	$(PYTEST)

lint: $(VENV)/.ok
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.ok
	$(VENV)/bin/rifflemix bench ops --out runs/bench

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
