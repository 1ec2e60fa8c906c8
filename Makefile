# Every target sets up .venv first, if it is missing or old. That needs Python >= 3.11 and make, and nothing else.

PYTHON ?= python3
BIN = .venv/bin
READY = .venv/ready
TOOLS = node_modules/ready

.PHONY: help demo quick test check check-js docs release constants bench attack-self long screenshots lock clean

help:
	@echo "make demo   run two servers and explain a real rejection (ONCE=1: stop after that; ROWS=1000000: of as many rows)"
	@echo "make quick  run the tests that are not slow, in two or three minutes on two cores"
	@echo "make test   run the whole test suite"
	@echo "make check  run ruff, mypy --strict and the import order; and eslint and tsc if node is installed"
	@echo "make docs   build the documentation site and run its notebooks: build/site/index.html"
	@echo "make release  build sdist and wheel, and run the quick tests against the wheel under each Python from 3.11 on"
	@echo "make constants  write the JavaScript constants that the page shares with Python"
	@echo "make bench  time answers, compare with other software, build a bundle, ask under load"
	@echo "make attack-self  run the known attacks on the service: floods, hostile requests, timing (an hour)"
	@echo "make long   run attack-self, kill servers 50 times under load, then try a million points of certified regions"
	@echo "make screenshots  make the pictures of the page in README; needs Chromium"
	@echo "make lock   resolve the versions of the development dependencies again, and of the image's"

$(READY): pyproject.toml requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Counterveil needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)
	@ONCE=$(ONCE) ROWS=$(ROWS) $(BIN)/python examples/demo.py

quick: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow" --hypothesis-profile quick --ignore tests/test_shards.py

test: $(READY)  # Ray leaves threads behind in its process, so its tests have one of their own
	$(BIN)/python -m pytest tests/test_shards.py
	$(BIN)/python -m pytest -n auto --ignore tests/test_shards.py

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory check-js; \
	elif [ "$$CI" = true ]; then echo "The JavaScript checks need node and npm"; exit 1; \
	else echo "No node and npm here: the JavaScript checks are skipped"; fi

$(TOOLS): package.json
	npm install --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

check-js: $(TOOLS)
	node_modules/.bin/eslint --max-warnings 0
	node_modules/.bin/tsc

docs: $(READY)
	$(BIN)/python -m sphinx -b html -q -n -W --keep-going -c docs -d build/doctrees . build/site
	@echo "build/site/index.html"

release: $(READY)
	@$(BIN)/python tests/release.py $(PYTHONS)

constants: $(READY)
	$(BIN)/python tests/make_constants.py

bench: $(READY)
	@$(BIN)/counterveil bench
	@$(BIN)/python benchmarks/answer.py
	@$(BIN)/python benchmarks/build.py
	@$(BIN)/python benchmarks/sealed.py
	@$(BIN)/python benchmarks/memory.py
	@$(BIN)/python benchmarks/load.py
	@$(BIN)/python benchmarks/page.py

attack-self: $(READY)
	$(BIN)/python -m pytest -q tests/adversary
	@$(BIN)/python tests/adversary/floods.py
	@$(BIN)/python tests/adversary/hostile.py
	@$(BIN)/python tests/adversary/timing.py

long: attack-self
	@$(BIN)/python tests/faults.py 50
	@$(BIN)/python tests/faults.py --ledger postgres 50
	@$(BIN)/python tests/faults.py --joint 200
	@$(BIN)/python tests/shard_load.py 50
	@$(BIN)/python tests/soak.py --minutes 20 --every 5 --workers 2
	COUNTERVEIL_LONG=1 $(BIN)/python -m pytest -q -n auto tests/test_crashes.py tests/test_exact.py tests/test_sealed.py tests/test_ask.py
	COUNTERVEIL_POINTS=70000 $(BIN)/python -m pytest -q tests/test_certificates.py

screenshots: $(READY)
	@$(BIN)/python examples/screenshots.py

lock: $(READY)
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --python-version 3.11 --extra dev \
		--output-file requirements-dev.txt --upgrade pyproject.toml
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
		--extra server --extra postgres --extra otel --constraint requirements-dev.txt \
		--output-file deploy/requirements.txt pyproject.toml

clean:
	rm -rf .venv node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
