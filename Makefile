# make test: everything that a change must pass. It needs Rust and Python 3.11 or newer.

PYTHON ?= python3
COUNT ?= 200
KILLS ?= 25
SECONDS_A_TARGET ?= 120
FUZZ_TARGETS ?= job item pickle packed tensor_metadata file convert manifest journal
GRISTMILL = target/debug/gristmill
WHEELS = target/wheels

.PHONY: test test-rust test-python test-bridges wheel lint fmt schemas oracle memory shapes fuzz bench kernels readers kill clean

test: test-rust test-python

test-rust:
	cargo test

# The tests run the binary that `cargo test` builds, and the package as users have it: installed from its wheel.
test-python: wheel
	cargo test --no-run --quiet
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(WHEELS)/*.whl
	.venv/bin/python -m pytest -q -rs tests/python

# The package in the debug profile, beside the library in `target/`: what is built for one is used by the other.
wheel: .venv/ready
	rm -rf $(WHEELS)
	.venv/bin/python -m maturin build --quiet --manifest-path python/Cargo.toml --profile dev --compatibility linux \
		--interpreter .venv/bin/python --out $(WHEELS)

# PyTorch's, RLlib's and Ray's side of the package, in a Python that has them, and README's snippet with PyTorch:
# make PYTHON=... test-bridges
test-bridges: wheel
	cargo build --quiet
	rm -rf target/bridges
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --target target/bridges $(WHEELS)/*.whl
	PYTHONPATH=target/bridges:$(PYTHONPATH) $(PYTHON) -m pytest -q -rs tests/python/test_bridges.py \
		tests/python/test_rllib.py tests/python/test_ray.py tests/python/test_examples.py
	PYTHONPATH=target/bridges:$(PYTHONPATH) $(PYTHON) -m pytest -q -rs tests/python/test_readme.py -k torch

# A virtual environment of this folder's own, made anew when the pinned packages change.
.venv/ready: tests/python/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: found $$($(PYTHON) --version 2>&1), the tests need Python 3.11 or newer: make PYTHON=python3.12 test" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
		{ echo "make: Python has no venv: install it (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/python/requirements.txt
	touch $@

lint:
	cargo fmt --all --check
	.ci/one-set-of-features
	cargo clippy --workspace --all-targets -- -D warnings

fmt:
	cargo fmt --all

# The JSON Schemas in schemas/ are generated from the types; a test keeps them current.
schemas:
	UPDATE_SCHEMAS=1 cargo test --quiet current

# Random recordings through the real RLlib and through gristmill. Needs RLlib; says so and passes without it.
oracle:
	cargo build
	$(PYTHON) tests/oracle/run.py --count $(COUNT) --gristmill $(GRISTMILL)

# Peak memory and speed on step logs of growing size.
memory: .venv/ready
	cargo build --release
	.venv/bin/python benches/memory.py
	.venv/bin/python benches/memory.py --steps 50000000 --memory-limit 256MiB --threads 1
	.venv/bin/python benches/memory.py --steps 50000000 --memory-limit 256MiB
	.venv/bin/python benches/memory.py --steps 50000000 --memory-limit 256MiB --interleaved
	.venv/bin/python benches/memory.py --steps 50000000 --memory-limit 256MiB --curiosity
	.venv/bin/python benches/memory.py --steps 600000 --keepers
	.venv/bin/python benches/memory.py --steps 600000 --keepers --memory-limit 256MiB
	.venv/bin/python benches/memory.py --steps 1000000 --id-bytes 500
	.venv/bin/python benches/memory.py --steps 100000 --id-bytes 20000 --memory-limit 256MiB

# Time and memory on shapes that no recording should have: very many columns, files, episodes; very long ones, large rows.
shapes: .venv/ready
	cargo build --release --no-default-features
	.venv/bin/python benches/shapes.py $(ARGS)

# Hostile bytes for everything that is read. Needs a nightly Rust and `cargo install cargo-fuzz`. Without a sanitizer: there
# is no unsafe code here.
fuzz:
	cd fuzz && cargo +nightly run --quiet --example seeds
	cd fuzz && for target in $(FUZZ_TARGETS); do \
		cargo +nightly fuzz run --sanitizer none $$target -- -max_total_time=$(SECONDS_A_TARGET) -timeout=20 -rss_limit_mb=1024 || exit 1; \
	done

# gristmill beside its peers; see benches/bench.py for what can be chosen: make bench ARGS="--workloads a --threads 1".
bench: .venv/bench
	cargo build --release
	.venv/bin/python benches/bench.py $(ARGS)

# The inner loops by themselves.
kernels:
	cargo bench --bench kernels --no-default-features -- $(ARGS)

# How fast peers read shards back, tensors as lists and as bytes.
readers: .venv/bench
	cargo build --release
	.venv/bin/python benches/readers.py

.venv/bench: .venv/ready benches/requirements.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement benches/requirements.txt
	touch $@

# Kills conversions at random moments, KILLS times a job (three jobs, and an overwritten data set), resumes them, and
# compares every byte with an undisturbed run.
kill:
	GRISTMILL_KILLS=$(KILLS) cargo test --test it resume

clean:
	rm -rf target .venv
