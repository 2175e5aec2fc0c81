# Each target works alone on a fresh Debian machine with git, make, python3 and python3-venv.
# What pip is told elsewhere (an index, a proxy) is honoured; PYTHON=... chooses the interpreter.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
DEMO := build/demo

PANEL := jupyter_sky/notebook/static/panel.js
SIDEBAR := jupyter_sky/labextension/package.json
VIEWS := $(PANEL) $(SIDEBAR)
VIEW_SOURCES := $(shell find labextension/src labextension/style labextension/schema -type f) \
    $(wildcard labextension/*.json labextension/*.?js labextension/yarn.lock)
INSTALLED := $(VENV)/share/jupyter/labextensions/jupyter-sky
# The environment's own Jupyter shows the sidebar as it was built last: what pip copies gets old.
SHOW_SIDEBAR := rm -rf $(INSTALLED) && mkdir -p $(dir $(INSTALLED)) && \
    ln -s $(CURDIR)/jupyter_sky/labextension $(INSTALLED)
JLPM := cd labextension && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" jlpm

# The last version before subshells and much else: tests put it before the newer one on the path of
# some kernels, where everything else is as it is.
IPYKERNEL_6 := build/ipykernel6

# Debian packages that tests use beside Python: the hosts of the test lab are network namespaces,
# the panel is looked at in a browser.
SYSTEM_PACKAGES := iproute2 iptables openssh-client openssh-server tcpdump chromium-headless-shell fonts-dejavu-core \
    slurmctld slurmd slurm-client munge slurmdbd mariadb-server-core environment-modules

# What `make check` runs of the tests: quick ones of each room, and a cell on a real cluster.
QUICK := $(wildcard tests/test_*.py) tests/analysis tests/transport tests/serialization/test_user_modules.py \
    tests/node/agent tests/node/supervisor tests/node/blobs tests/api/test_instance.py tests/plugins/test_images.py \
    tests/cluster/test_state.py tests/cluster/runs/test_record.py tests/providers/ssh/connection/test_targets.py \
    tests/notebook/options/test_options.py \
    tests/notebook/output/test_safe_display.py tests/notebook/panel/test_panel.py tests/notebook/commands/test_commands.py \
    tests/server/test_schema.py tests/guides/test_contributing.py

# Tests start hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo views test test-gpu gpu-wheels test-environment check lint format pictures bench system-packages clean

help:
	@echo "make demo     run notebooks/quickstart.ipynb without a browser and print what it shows"
	@echo "make views    build the notebook's panel and JupyterLab's sidebar, from labextension/"
	@echo "make check    check style and types, and run a quick test of each room: before each commit"
	@echo "make test     run all tests (ARGS=... goes to pytest)"
	@echo "make test-gpu run the tests that need an NVIDIA GPU, on a machine that may lack a network"
	@echo "make gpu-wheels  fetch what that machine lacks, to be carried there with the repository"
	@echo "make lint     check style and types"
	@echo "make format   rewrite the code in the style that lint checks"
	@echo "make pictures make the README's pictures again, with a real JupyterLab and cluster"
	@echo "make bench    measure, beside other tools where they are installed"
	@echo "make clean    remove the environment and everything built"

demo: $(VENV)/.with-demo $(VIEWS)
	@$(SHOW_SIDEBAR)
	$(PY) notebooks/headless.py notebooks/quickstart.ipynb $(DEMO)/quickstart.ipynb
	@echo
	@echo "The notebook with these outputs is $(DEMO)/quickstart.ipynb. To work in it:"
	@echo "    $(PY) -m pip install jupyterlab && $(PY) -m jupyterlab $(DEMO)/quickstart.ipynb"

views: $(VIEWS)
	@$(SHOW_SIDEBAR)

test:
	@$(MAKE) --no-print-directory --jobs 4 test-environment
	@$(SHOW_SIDEBAR)
	$(PY) -m pytest -n auto $(ARGS)

check: $(VENV)/.with-test $(VENV)/.with-lint $(VIEWS)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -n auto $(QUICK) $(ARGS)

# The parts are made side by side: most of each is waiting for files to arrive.
test-environment: $(VENV)/.with-test $(VIEWS) $(IPYKERNEL_6) system-packages

lint: $(VENV)/.with-lint labextension/node_modules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(JLPM) check

format: $(VENV)/.with-lint
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# The README's, of a JupyterLab with a cluster at work.
pictures: test-environment
	@$(SHOW_SIDEBAR)
	$(PY) -m tests.labextension.pictures

# On a machine with a GPU, where there may be no network: its PyTorch, and the wheels of build/gpu.
test-gpu:
	@$(if $(wildcard build/gpu/*.whl),$(PYTHON),$(if $(wildcard $(PY)),$(PY),$(PYTHON))) \
	    -m tests.gpu $(ARGS)

# What that machine lacks, put here by one with a network: ARGS="--python 3.11 --machine aarch64".
gpu-wheels: | $(PY)
	$(PY) -m tests.gpu.wheels $(ARGS)

bench: $(VENV)/.with-test
	$(PY) -m tests.benchmarks --json build/bench/figures.json --svg build/bench/figures.svg $(ARGS)

clean:
	rm -rf $(VENV) $(dir $(VIEWS)) labextension/node_modules labextension/.yarn
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find jupyter_sky tests -name __pycache__ -prune -exec rm -rf {} +

$(VIEWS) &: $(VIEW_SOURCES) labextension/node_modules
	$(JLPM) build

labextension/node_modules: labextension/package.json labextension/yarn.lock | $(VENV)/.with-panel
	$(JLPM) install
	@touch $@

$(IPYKERNEL_6): | $(PY)
	$(PY) -m pip install --quiet --no-deps --target $@ ipykernel==6.31.0 nest-asyncio==1.6.0

# One stamp for each extra: a second run installs nothing, a changed requirement installs again.
$(VENV)/.with-%: pyproject.toml constraints.txt | $(PY)
	@rm -rf $(INSTALLED)  # pip would write through the link, to what is being built meanwhile
	HATCH_BUILD_NO_HOOKS=true $(PY) -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

# One pip at a time in the environment; what builds the views comes first, as that takes longest.
$(VENV)/.with-test: | $(VENV)/.with-panel

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "jupyter_sky needs Python 3.11 or newer: run make PYTHON=python3.11 (or newer)." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	    { echo "Python cannot make virtual environments here: run 'apt-get install python3-venv' as root, then make again." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

system-packages:
	@missing=; \
	for package in $(SYSTEM_PACKAGES); do \
	    dpkg-query --show --showformat='$${db:Status-Status}' $$package 2>/dev/null \
	        | grep -qx installed || missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update --quiet=2 && \
	    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --no-install-recommends $$missing; \
	else \
	    echo "Missing, so some tests will be skipped: run 'apt-get install$$missing' as root." >&2; \
	fi
