# `make demo` and `make test` do all their own set-up in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-long bench bench-engine bench-scale bench-quick lint format clean

demo: .venv/installed
	$(BIN)/mutua demo

test: .venv/installed-dev lint
	$(BIN)/python -m pytest -m "not long" -n 2 --cov --cov-report=term

# What takes long, and the attack of tests/attack: kills, crashes and hostile files. Under 45 minutes on two cores.
test-long: .venv/installed-dev
	$(BIN)/python -m pytest -m long -n 2

# How fast it is beside a plain PyTorch loop: about eight minutes, on a machine with nothing else to do.
bench: .venv/installed
	$(BIN)/python benchmarks/speed.py

# What the engine costs beside bare steps, and how cost grows with clients: three and a half minutes.
bench-engine: .venv/installed
	$(BIN)/python benchmarks/overhead.py

# How runs grow with clients and with rounds: some ten minutes.
bench-scale: .venv/installed
	$(BIN)/python benchmarks/scale.py

# Under a minute; fails where a ratio has fallen below 85 % of the recorded one.
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
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .coverage dist

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/installed-dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@ .venv/installed
