# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-long test-deploy test-lowest docs bench bench-engine bench-scale bench-ray bench-clients bench-deploy bench-watch bench-quick lint \
  format clean

demo: .venv/installed
	$(BIN)/mutua demo

test: .venv/installed-dev lint
	$(BIN)/python -m pytest -m "not long and not deploy" -n 2 --cov --cov-report=term

# The slow tests, and the attack of tests/attack: kills, crashes and hostile files. Under 45 minutes on two cores.
test-long: .venv/installed-dev
	$(BIN)/python -m pytest -m long -n 2

# Deployments that are killed, refused and restarted, with real servers and sites on this machine: about half an hour if
# it is otherwise idle.
test-deploy: .venv/installed-dev
	$(BIN)/python -m pytest -m deploy -n 0

# The tests with the lowest versions that pyproject.toml allows of everything except torch, on the lowest Python, 3.11.
test-lowest: .venv-lowest/installed
	.venv-lowest/bin/python -m pytest -m "not long and not deploy" -n 2

# The documents as a site in site/, with the API reference from the docstrings. Fails if a link or a name leads nowhere.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# How fast it is compared with a plain PyTorch loop: about eight minutes, on an otherwise idle machine.
bench: .venv/installed
	$(BIN)/python benchmarks/speed.py

# What the engine costs beyond the bare steps, and how the cost grows with clients: three and a half minutes.
bench-engine: .venv/installed
	$(BIN)/python benchmarks/overhead.py

# How time and memory of a run grow with clients and with rounds: about ten minutes.
bench-scale: .venv/installed
	$(BIN)/python benchmarks/scale.py

# The Ray engine against the local one: about twelve minutes. Fails if it is below 0.9 of the local one's speed.
bench-ray: .venv/installed-dev
	$(BIN)/python benchmarks/ray.py

# Memory of all processes with 1,000 and 4,000 clients, and a run of 20,000: about half an hour.
bench-clients: .venv/installed-dev
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/clients.py --clients 20000 --model linear --rounds 5

# What a round of a deployment costs beside a bare Flower app: about ten minutes on an otherwise idle machine. Fails if
# it takes more than 1.2 times as long, or more than 5 s.
bench-deploy: .venv/installed-dev
	$(BIN)/python benchmarks/deploy.py

# First paint and updates of the live page, with 1,000 clients and 500 rounds, and with 200 runs: about five minutes,
# on an otherwise idle machine. Needs Chromium. Fails if a first paint takes over 2 s or an update over 100 ms.
bench-watch: .venv/installed-dev
	$(BIN)/python benchmarks/watch.py

# Under a minute; fails if a ratio is below 85 % of the recorded one.
bench-quick: .venv/installed
	$(BIN)/python benchmarks/speed.py --quick

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-lowest .mypy_cache .ruff_cache .pytest_cache .coverage dist site

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/installed-dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@ .venv/installed

.venv/installed-docs: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[docs]"
	touch $@ .venv/installed

.venv-lowest/installed: pyproject.toml tools/lowest.py
	$(PYTHON) -m venv --clear .venv-lowest
	$(PYTHON) tools/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --constraint .venv-lowest/constraints.txt --editable ".[dev]"
	touch $@
