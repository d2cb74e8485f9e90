PY ?= python3
VENV ?= .venv
# Short enough that two slow cores show the first row at once and the whole table in three minutes.
DEMO = --task digits --task-option patch_size=2 --seeds 3 --max-steps 200 --batch-size 32 \
	--mixers softmax,csp,sliceformer,tssa,butterfly,sinkhorn
export OMP_WAIT_POLICY ?= PASSIVE
# Two processes with one thread each finish sooner than one process with two.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 --dist worksteal

.PHONY: demo test test-all lint bench clean

KERNELS = setup.py $(wildcard src/rifflemix/ops/native/*.cpp src/rifflemix/ops/native/*.h)

$(VENV)/.demo: pyproject.toml constraints.txt $(KERNELS)
	$(PY) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e ".[train]"
	@touch $@

# The package is there already: this adds what only the tests and the linters need.
$(VENV)/.ok: $(VENV)/.demo
	$(VENV)/bin/python -m pip install -q -c constraints.txt "rifflemix[test]"
	@touch $@

# Six mixers, one backbone, real handwritten digits.
demo: $(VENV)/.demo
	$(VENV)/bin/rifflemix compare $(DEMO) --out runs/demo

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
