# Each target installs what is missing first, then does its work in one build profile, so that dependencies
# build once.

TILESCRIBE = target/release/tilescribe
# small enough for two cores and a few minutes; `make demo DEMO_SECONDS=600` searches longer
DEMO_SECONDS = 60
# numpy, onnx, and the ONNX Runtime that results are compared with
PYTHON = target/venv/bin/python

.PHONY: demo test bench lint build setup checkpoint cuda wheel test-wheel arena control replay

# A real network from ONNX to a deployed artifact: made, compiled, run, timed.
demo: build
	@mkdir -p demo
	cargo run --release --quiet --example demo_network -- demo/squeezenet.onnx
	$(TILESCRIBE) compile demo/squeezenet.onnx -o demo/squeezenet --time-budget $(DEMO_SECONDS)
	$(TILESCRIBE) run demo/squeezenet --output-dir demo/outputs
	$(TILESCRIBE) bench demo/squeezenet

test: lint
	@.ci/setup venv cross cuda fleet
	cargo test --release
	$(MAKE) demo DEMO_SECONDS=20
	$(MAKE) test-wheel
	$(PYTHON) tests/onnx_nodes.py
	$(PYTHON) tests/onnx_nodes.py --compiled
	$(PYTHON) tests/contrib.py --compiled
	$(PYTHON) tests/control_flow.py --compiled --count 3
	$(PYTHON) tests/control_flow.py --compiled --open --count 3
	$(PYTHON) tests/networks.py --trials-per-task 0 random
	$(PYTHON) tests/networks.py --trials-per-task 2 demo squeezenet
	$(PYTHON) tests/networks.py --trials-per-task 2 light light_squeezenet light_shufflenet light_inception_v1

# Both Python packages, in target/wheels: what loads and runs artifacts, and what makes them.
WHEELS = $(CURDIR)/target/wheels
MATURIN = $(CURDIR)/target/wheel/bin/maturin build --release --out $(WHEELS)
wheel: setup
	@.ci/setup wheel
	rm -rf $(WHEELS)
	cd python/runtime && CARGO_TARGET_DIR=$(CURDIR)/target $(MATURIN)
	cd python/tilescribe && CARGO_TARGET_DIR=$(CURDIR)/target $(MATURIN)
	for wheel in $(WHEELS)/*.whl; do du -h $$wheel; target/wheel/bin/auditwheel show $$wheel | sed -n '2,4p'; done

# What a user installs, in an empty environment: tests, the code of the README pages, and types. What needs
# PyTorch is tested where `.ci/setup torch` could install it.
test-wheel: wheel
	@.ci/setup torch
	tests/python/run.sh $(WHEELS)

bench: setup
	cargo bench

lint: setup
	cargo fmt --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps

build: setup
	cargo build --release

# The same in target/with_cuda, with candle's CUDA back end: `pretrain --device cuda` trains on a GPU. Needs
# neither a GPU nor CUDA here, and starts without them; half an hour on two cores. CAPABILITY is the least
# compute capability that it runs on.
CAPABILITY = 80
CUDA = $(CURDIR)/target/nvcc/nvidia/cu13
cuda: setup
	@.ci/setup nvcc
	CUDA_COMPUTE_CAP=$(CAPABILITY) NVCC=$(CUDA)/bin/nvcc PATH="$(CUDA)/bin:$$PATH" CUDARC_CUDA_VERSION=13000 CUDAFORGE_THREADS=2 \
	NVCC_APPEND_FLAGS=--compress-mode=size CUDA_HOME=$(CUDA)/none CARGO_TARGET_DIR=target/with_cuda cargo build --release --features cuda

# The shipped model anew, in checkpoints/rebuilt: transformer and world model learn from programs that searches
# chose, the transformer then preferences from those that were drawn; the estimator learns from all whose times
# err least. Says how near the estimator comes to the one that is built in, and the transformer before it learned
# preferences to that one, which has. Takes an hour on two cores of a Zen 5, more on slower ones.
DRAWN = $(addprefix corpus/records/,$(addsuffix .jsonl.zst,on_policy drawn_emerald_rapids attention_rows \
	drawn_products))
CHOSEN = $(filter-out $(DRAWN),$(wildcard corpus/records/*.zst))
UNDISTURBED = $(addprefix corpus/records/,$(addsuffix .jsonl.zst,paced second_machine third_machine fourth_machine \
	short_numbers current_space avx2 published tiles searched_emerald_rapids searched_products)) $(DRAWN)
checkpoint: build
	$(TILESCRIBE) pretrain --corpus $(CHOSEN) --estimator-corpus $(UNDISTURBED) \
	--epochs 1.2 --learning-rate 0.003 --held-out 0.05 --beside built-in -o checkpoints/rebuilt
	$(TILESCRIBE) pretrain --preferences --corpus $(DRAWN) --held-out 0.05 -o checkpoints/rebuilt
	$(TILESCRIBE) pretrain --world-only --corpus $(CHOSEN) --epochs 8 -o checkpoints/rebuilt

# Every method of the literature on the tasks of corpus/arena.txt: tables and a picture in arena. Half an hour
# on two cores; stopped, the same command goes on where it was.
METHODS = lm,random,evolution,guided,droplet,storm,transfer,ansor,metaschedule,roller,pruner,harl,tlp,world
ARENA_TRIALS = 32
arena: build
	$(TILESCRIBE) compare --workloads corpus/arena.txt --methods $(METHODS) --trials $(ARENA_TRIALS) --seeds 1 -o arena
	python3 tools/tables.py arena/results.json --seconds 1,2,5 --svg arena/arena.svg > arena/tables.md
	cat arena/tables.md

# lm beside its controls on all test tasks, three seeds: tables in control. Hours on two cores; can be resumed.
control: build
	for tasks in evaluation unrelated preregistered; do \
	$(TILESCRIBE) compare --workloads corpus/$$tasks.txt --methods lm --control shuffled,shuffled-networks,uniform --trials 10 --seeds 3 -o control/$$tasks && \
	python3 tools/tables.py control/$$tasks/results.json > control/$$tasks.md && cat control/$$tasks.md || exit; done

# Samplers and rankers held against the pools of corpus/pools, without measuring; a minute.
replay: build
	for pools in corpus/pools/*.jsonl.zst; do \
	$(TILESCRIBE) compare --replay $$pools --rankers estimator,learning,world,together,value-head,policy --control shuffled-all || exit; done

setup:
	@.ci/setup
