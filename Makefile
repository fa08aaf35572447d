# make help: what can be done here. Every target sets itself up first (.venv and, as root on Debian, system packages).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test chaos lint soak mutants reproduce bench bench-accuracy bench-interference bench-mission bench-knowing bench-phases bench-beside-ray bench-paint browser clean lock prices setup

PYTHON := .venv/bin/python
# The tests start hundreds of programs: without compiled modules each compiles HCloud anew, half a second of its time.
unexport PYTHONDONTWRITEBYTECODE
# Many tests wait for processes and sockets: on two cores three workers took 710 s where two took 811 s.
PYTEST_WORKERS ?= 3

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1|\2/p' Makefile | column -t -s '|'

demo: setup  ## see HCloud learn real programs here, be killed half-way, and a simulated fleet (under 4 minutes)
	@$(PYTHON) demo/run.py

test: setup  ## lint and every test
	@scripts/test $(PYTEST_WORKERS)

SOAK_SEED ?= 0
SOAK_WORLDS ?= 1000
soak: setup  ## random worlds full of faults (SOAK_WORLDS=1000 SOAK_SEED=0), then properties on new random examples
	@$(PYTHON) -m lab.soak --seed $(SOAK_SEED) --worlds $(SOAK_WORLDS)
	@$(PYTHON) -m pytest -q --workers $(PYTEST_WORKERS) -m hypothesis --hypothesis-profile=explore

mutants: setup  ## change the code that spends money one place at a time; list what no test notices (ARGS="--most 60")
	@scripts/mutants $(ARGS)

reproduce: setup  ## the papers' experiments with our own decisions, beside the published numbers (ARGS="quasar --seeds 3")
	@$(PYTHON) -m lab.papers $(ARGS)

chaos: setup  ## every call to a cloud fails, hangs or lies, and the daemon is killed around it (all lives)
	@CHAOS_LIVES=all $(PYTHON) -m pytest -q --workers $(PYTEST_WORKERS) --test-by-test tests/chaos/test_every_call.py tests/chaos/test_kill_anywhere.py tests/chaos/test_kill_while_profiling.py

lint: setup  ## formatting, lint, strict types, import rules
	@scripts/lint

bench: setup  ## the performance targets, printed with this machine's description
	@$(PYTHON) -m bench

bench-accuracy: setup  ## how well applications are known from two runs, on real measurements
	@$(PYTHON) -m bench.accuracy

bench-interference: setup  ## slowdowns beside real neighbour programs, predicted and measured (an idle machine, 20 minutes)
	@$(PYTHON) -m bench.interference $(ARGS)

bench-mission: setup  ## 20 runs of 10 programs: the default policy beside simple rules (an idle machine, 25 minutes)
	@$(PYTHON) -m bench.mission $(ARGS)

bench-knowing: setup  ## what knowing jobs is worth in simulation, users guess or know sizes (ARGS="--seeds 4"; 30 minutes)
	@$(PYTHON) -m bench.knowing $(ARGS)

bench-phases: setup  ## changes of phase of simulated jobs, noticed and mistaken (ARGS="--seeds 6 --share 0.2"; 2 minutes)
	@$(PYTHON) -m bench.phases $(ARGS)

bench-beside-ray: setup  ## decisions a second beside Ray's autoscaler, which this installs (350 MB; 3 minutes)
	@scripts/beside_ray $(ARGS)

bench-paint: setup  ## how soon a browser shows each page with 10,000 jobs and 1,000 machines; installs Chromium (4 minutes)
	@scripts/browser bench.paint $(ARGS)

browser: setup  ## the pages in a real browser, against a real daemon with real jobs; installs Chromium (ARGS="-k walks")
	@scripts/browser pytest browser_tests $(ARGS)

clean:  ## remove everything these targets made
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

prices: setup  ## renew the shipped prices from the clouds' public lists (ARGS="us-east-1 ...": only these EC2 regions)
	@$(PYTHON) -m hcloud.catalog.renew $(ARGS)

lock: setup  ## requirements.lock from pyproject.toml (ARGS=--upgrade: newest versions of all)
	@scripts/lock $(ARGS)

setup:
	@scripts/setup
