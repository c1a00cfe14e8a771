# SynergAI. `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,$(shell command -v $(name))))
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 3
PROTOS := $(shell find proto -name '*.proto')

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1m%-11s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One stamp stands for the whole environment; it is renewed when its inputs change.
$(VENV)/.installed: pyproject.toml constraints.txt requirements-interop.txt
	@test -x $(BIN)/python || { command -v "$(PYTHON)" >/dev/null || { echo "Python 3.11 or newer not found; say where it is with PYTHON=PATH"; exit 1; }; $(PYTHON) -m venv $(VENV); }
	@echo "installing, this takes a few minutes"
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-interop.txt
	@touch $@

install: $(VENV)/.installed  ## create .venv with every pinned dependency

demo: install  ## build, profile, serve and measure on this machine; see README
	$(BIN)/python -m demo

example: install  ## one machine emulates three heterogeneous workers; see examples/README.md
	$(BIN)/python -m examples.heterogeneous_fleet

variants: install  ## an engine with variants under a changing load; see examples/README.md
	$(BIN)/python -m examples.accuracy_scaling

pipeline: install  ## a model that no worker may hold, in stages on two; see examples/README.md
	$(BIN)/python -m examples.pipeline

proto: install  ## regenerate the stubs from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=. \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --mypy_out=quiet:. \
	  --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --mypy_grpc_out=quiet:. $(PROTOS)

format: install  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet . || true

lint: install  ## ruff, format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: install  ## mypy --strict
	$(BIN)/mypy

test: lint type  ## lint, types and the whole test suite, JOBS=3 files at a time
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

acceptance: install  ## long tests; seven need root, Debian packages or a GPU, see docs/maintainers/contributing.md
	$(BIN)/pytest tests/acceptance --timeout 3600

bench: install  ## compare with bare grpc.aio and plain ONNX Runtime; writes docs/benchmarks.md
	$(BIN)/python -m benchmarks --write docs/benchmarks.md
	$(BIN)/python benchmarks/scheduling.py

bench-peers: install  ## install Triton, KServe, MLServer and Ray Serve, and compare with each
	$(BIN)/python -m benchmarks.peers --write docs/benchmarks.md

images: install  ## build the images of gateway, agent and tools with buildah, on BASE=IMAGE
	$(BIN)/python -m deploy.images.build gateway agent-onnxruntime tools $(if $(BASE),--base $(BASE))

wheel:  ## build the wheel into dist/, without .venv
	test -x build/env/bin/python || $(PYTHON) -m venv build/env
	build/env/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt build/env/bin/python -m build --wheel

# An environment of its own: nothing else needs MkDocs.
build/docs-venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv build/docs-venv
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt build/docs-venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: build/docs-venv/.installed  ## build the documentation site into build/docs
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. build/docs-venv/bin/mkdocs build --strict --quiet
	@echo "open build/docs/index.html"

release:  ## check, build and tag a release: make release VERSION=0.1.0
	@test -n "$(VERSION)" || { echo "say which one: make release VERSION=0.1.0"; exit 1; }
	@grep -qx 'version = "$(VERSION)"' pyproject.toml || { echo "pyproject.toml has another version"; exit 1; }
	@grep -qx '## $(VERSION)' CHANGELOG.md || { echo "CHANGELOG.md has no section $(VERSION)"; exit 1; }
	@test -f tests/saved_states/$(VERSION).tar.gz || { echo "no saved state: run $(BIN)/python -m tests.saved_state"; exit 1; }
	@test -z "$$(git status --porcelain)" || { echo "commit or remove what git status shows"; exit 1; }
	$(MAKE) test wheel docs
	git tag --annotate v$(VERSION) --message "SynergAI $(VERSION)"
	@echo "git push origin v$(VERSION) publishes it"

clean:  ## remove caches and wheels; .venv, models and runs stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: help install demo example variants pipeline proto format lint type test acceptance bench bench-peers images wheel docs release clean
