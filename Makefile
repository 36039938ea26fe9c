# Each target makes what it needs in $(VENV).
#
#   make train    train a model on one parameter server and two workers
#   make test     run the tests that every change has to pass
#   make nightly  run all other tests, chaos and short benchmarks
#   make lint     check formatting and style
#   make format   format, and mend what the linter can
#   make chaos    train under all strategies while processes die at random
#   make keras-tests  run Keras's own tests in the scope of three strategies
#   make bench    run the benchmarks
#   make clean    remove what was built
#
# PYTHON is the interpreter for the virtual environment (3.10 to 3.13),
# TEST_SECONDS the bound of one test, TEST_PROCESSES how many files of tests
# within one process run side by side (0: one, in pytest's own process).
# NIGHTLY_FLAGS: `python -m tests.nightly_run --help`,
# CHAOS_FLAGS: `python -m tests.chaos.main --help`,
# KERAS_TESTS_FLAGS: `python -m tests.keras_own.main --help`.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
TEST_SECONDS ?= 300
TEST_PROCESSES ?= 2
NIGHTLY_FLAGS ?=
CHAOS_FLAGS ?= --events=200 --strategy=all
KERAS_TESTS_FLAGS ?= --strategy=all
TRAIN_DIR ?= build/train
TRAIN_FLAGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := train
.PHONY: train test nightly lint format chaos keras-tests bench clean

train: $(STAMP)
	@$(BIN)/tfdist launch --num_ps=1 --num_workers=2 \
		examples/train_image_classifier.py -- \
		--output_dir=$(TRAIN_DIR) $(TRAIN_FLAGS)
	@echo "A picture of this training: $(TRAIN_DIR)/training.png"

# Words and structure in seconds; then what runs in one process; then smokes on
# real clusters, one after another. A smoke that has waited too long, which a
# busy machine can make it do, is tried once more and listed as FLAKY.
PYTEST = $(BIN)/python -m pytest --timeout=$(TEST_SECONDS)
# Where smokes are: other files need not be imported once more.
SMOKES = all_reduce cli documents_test.py keras_programs multi_process peers
# Images of containers often forbid to keep what Python has compiled: each
# process would compile all tests, or all of tfdist, anew.
test nightly: export PYTHONDONTWRITEBYTECODE =

test: $(STAMP)
	$(PYTEST) tests/words
	$(PYTEST) --numprocesses=$(TEST_PROCESSES) --dist=loadfile \
		-m "not smoke and not nightly" --ignore=tests/words tests
	$(PYTEST) -m "smoke and not nightly" --reruns=1 --only-rerun=^Waited \
		$(SMOKES:%=tests/%)

nightly: $(STAMP)
	$(BIN)/python -m tests.nightly_run $(NIGHTLY_FLAGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos.main $(CHAOS_FLAGS)
	$(BIN)/python -m tests.chaos.without_servers

keras-tests: $(STAMP)
	$(BIN)/python -m tests.keras_own.main $(KERAS_TESTS_FLAGS)

bench: $(STAMP)
	set -e; for script in benchmarks/*.py; do \
		echo "== $$script"; $(BIN)/python $$script; done

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -rf "$(VENV)"
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A half-made environment of an earlier attempt is replaced.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No python3 found: set PYTHON to" \
		"a Python 3.10 to 3.13." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info[:2]; \
		sys.exit(not (3, 10) <= v <= (3, 13))' || { echo "$(PYTHON)" \
		"is not a Python 3.10 to 3.13: set PYTHON to one." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot" \
		"make virtual environments: install the package python3-venv, or" \
		"set PYTHON to another interpreter." >&2; exit 1; }
	@echo "Step 1 of 3: an environment for Python in $(VENV)"
	@"$(PYTHON)" -m venv --clear "$(VENV)"

# Shows pip's lines about large packages only. The status of a pipe is that of
# its last command, so pip's own is passed on in a file.
$(STAMP): setup.py tfdist/version.py | $(BIN)/python
	@echo "Step 2 of 3: TensorFlow, Keras and others, about a minute"
	@{ $(BIN)/python -m pip install --disable-pip-version-check \
		--progress-bar=off -e '.[plots,test]'; echo $$? >$@.status; } | \
	while IFS= read -r line; do case "$$line" in \
		*\([0-9][0-9]*" MB)"*) echo "  $${line#"$${line%%[! ]*}"}";; \
		"Installing collected packages"*) \
			echo "Step 3 of 3: unpacking them";; \
	esac; done
	@status=$$(cat $@.status); rm $@.status; test "$$status" = 0
	@touch $@
