# make demo   everything from generated videos to results, on a machine that has only Python
# make test   lint, types and the whole test suite, same set-up
# make clean  remove the virtual environment and the demo's output
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo
SEEDS ?= [0]
PYTEST_ARGS ?= -n 2

.PHONY: install demo test lint format clean
install: $(VENV)/.installed

$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

# Videos and clips go to demo/, networks and the table to runs/demo/, the page to runs/demo-report/. SEEDS='[0, 1, 2]' adds two seeds to the first.
demo: install
	$(BIN)/covid-cmsf demo-videos $(DEMO)/videos --size 72x54 --frames 20 --fps 12 --groups 24 --clips-per-group 2 --difficulty 0.1 --seed 9
	$(BIN)/covid-cmsf preprocess $(DEMO)/videos --out $(DEMO)/clips --layout ucf101 --splits $(DEMO)/videos/splits --flow-backend numba-fast --workers 2
	$(BIN)/covid-cmsf cotrain configs/demo/cotraining.yaml defaults.clips=$(DEMO)/clips 'seeds=$(SEEDS)' --out runs/demo --parallel 2
	$(BIN)/covid-cmsf report runs/demo --queries 36 --out runs/demo-report

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread a test process: two cores are quickly oversubscribed.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) runs/demo runs/demo-report build *.egg-info .pytest_cache .mypy_cache .ruff_cache
