# demo   a log is written, rotated, tailed into a broker and mirrored to another, a worker is killed; all is read back and compared,
#        in 15 s. Needs Python >= 3.11, gcc and make.
# test   everything but the foreign peers. Needs Java 17 and Maven as well.
# Every verb works in a fresh clone; VENV=… and PYTHON=… choose others.

VENV    ?= .venv
REPORTS ?= build/reports
PYTHON  ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

BIN     := $(VENV)/bin
SOURCES := pyproject.toml $(wildcard ingestd/records/*.pyx ingestd/records/*.pxd)

.PHONY: help demo test compiled test-peers test-long lint bench evidence reference clean

help:
	@sed -n '/^#/!q; s/^# //p' Makefile

demo: $(VENV)/.installed
	$(BIN)/python load-tests/demo.py

test: $(VENV)/.developing
	PYTHONPATH=tests/kafka $(BIN)/python -m harness.programs java mvn setpriv prlimit unshare
	$(MAKE) --no-print-directory --jobs=3 --keep-going $(LONGEST) $(BESIDE) $(OTHERS)

# The parts of `test`: a directory each, three side by side, since most tests wait for brokers most of the time. The longest
# begin first, so that none is left alone at the end. BESIDE=test-peers adds that one, behind them. `-u`: a part that is
# stopped has shown where it was.
LONGEST := test-kafka test-faults test-spark test-unit
OTHERS  := $(filter-out $(LONGEST),$(patsubst tests/%/,test-%,$(sort $(dir $(wildcard tests/*/test_*.py)))))
.PHONY: $(LONGEST) $(OTHERS)
$(LONGEST) $(OTHERS): test-%: $(VENV)/.developing compiled
	$(BIN)/python -u -m pytest -m "not peers and not long" --junitxml=$(REPORTS)/test-$*.xml tests/$*

# Bytecode for what tests start hundreds of times, also where the environment tells Python to write none: 0.2 CPU seconds
# of each daemon.
compiled: $(BIN)/python
	$(BIN)/python -m compileall -q ingestd

test-peers: $(VENV)/.developing compiled
	PYTHONPATH=tests/kafka $(BIN)/python -m harness.programs java mvn setpriv go kcat rsyslogd omkafka promtool systemd-analyze logrotate svlogd
	$(BIN)/python -m pytest -m peers --junitxml=$(REPORTS)/test-peers.xml

# Campaigns: random histories, as many as HISTORIES says, in simulation and with a real daemon and files. With one order
# of sets, a seed tells the same history again. The few that fail are printed; too many are a failure.
HISTORIES ?= 1000000
test-long: $(VENV)/.developing
	PYTHONHASHSEED=0 INGESTD_HISTORIES=$(HISTORIES) $(BIN)/python -m pytest -rP --timeout 86400 -o faulthandler_timeout=0 tests/unit/tail/test_histories.py
	INGESTD_HISTORY_LOGS=3000 INGESTD_HISTORY_SECONDS=600 INGESTD_HISTORY_PAUSE=0.003 \
		$(BIN)/python -m pytest --timeout 7200 -o faulthandler_timeout=0 -m long tests/faults tests/spark tests/broker

lint: $(VENV)/.developing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests/examples
	$(BIN)/lint-imports

# BENCH="compare scaling" chooses, SIZE=200MB makes it smaller, FLUENT_BIT=/path/to/fluent-bit adds it; results lie in
# load-tests/results. What is measured is what a user installs: a package without the tools of development beside it.
bench: $(VENV)/.developing $(VENV)-user/.installed $(VENV)-connector/.installed
	INGESTD_PYTHON=$(abspath $(VENV)-user/bin/python) $(BIN)/python load-tests/bench.py $(if $(SIZE),--size $(SIZE)) $(if $(FLUENT_BIT),--fluent-bit $(FLUENT_BIT)) $(BENCH)

# After `test` and `test-peers`: every test that tests/seed_systems.toml names did run.
evidence: $(VENV)/.installed
	$(BIN)/python tests/evidence/seed_systems.py $(wildcard $(REPORTS)/*.xml)

# config/REFERENCE.md, from the settings classes.
reference: $(VENV)/.installed
	$(BIN)/python tests/evidence/reference.py

clean:
	rm -rf $(VENV) $(VENV)-user $(VENV)-connector build demo-out load-tests/results ingestd/records/*.c ingestd/records/*.so *.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with venv is needed: apt-get install python3 python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)-user/.installed: $(BIN)/python $(SOURCES) $(shell find ingestd -name '*.py')
	$(BIN)/python -m venv --clear $(VENV)-user
	$(VENV)-user/bin/python -m pip install --quiet '.[spark]'
	touch $@

# Spark's own Kafka connector, beside which ours is measured: the newest whose jars are all to be had.
$(VENV)-connector/.installed: $(BIN)/python
	$(BIN)/python -m venv --clear $(VENV)-connector
	$(VENV)-connector/bin/python -m pip install --quiet pyspark==4.0.0
	touch $@

$(VENV)/.installed: $(BIN)/python $(SOURCES)
	@echo "Installing ingestd and what it needs into $(VENV): a minute or two, once."
	$(BIN)/python -m pip install --editable .
	touch $@

$(VENV)/.developing: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.installed
