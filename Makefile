# make demo       everything from generated videos to results, on a machine that has only Python
# make real       the same on ten classes of UCF-101: make real CLIPS=UCF-101, the folder of its videos
# make test       lint, types and all tests, same set-up
# make test-fast  lint and the quick tests, for the inner loop
# make coverage   all tests again, slower: the lines that no test runs, as pages in htmlcov/
# make format     fix what ruff can fix
# make audit      look for known weaknesses of the tested versions; asks an advisory service on the network
# make docs       build the documentation into site/, strictly and without network
# make clean      remove the virtual environment and the demo's output
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo
SEEDS ?= 0
CLIPS ?=
LISTS ?=
TEN := Archery,BasketballDunk,Diving,HorseRace,JumpRope,PlayingPiano,PlayingViolin,SkyDiving,Surfing,Swing
PYTEST_ARGS ?= -n 2

.PHONY: install demo real test test-fast audit coverage lint ruff mypy format docs clean
install: $(VENV)/.installed

$(VENV)/.installed: setup.py setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

# Videos and clips go to demo/, networks and the table to runs/demo/, the page to runs/demo-report/. SEEDS=0,1,2 adds two seeds to the first.
demo: install
	$(BIN)/covid-cmsf demo-videos $(DEMO)/videos --size 72x54 --frames 20 --fps 12 --groups 24 --clips-per-group 2 --difficulty 0.1 --seed 9
	$(BIN)/covid-cmsf preprocess $(DEMO)/videos --out $(DEMO)/clips --layout ucf101 --splits $(DEMO)/videos/splits --flow-backend numba-fast --workers 2
	$(BIN)/covid-cmsf cotrain demo --clips $(DEMO)/clips --seeds '$(SEEDS)' --out runs/demo --parallel 2
	$(BIN)/covid-cmsf report runs/demo --queries 36 --out runs/demo-report

# Clips go to clips/ucf101-ten, networks and the table to runs/ucf101-ten, the page to runs/ucf101-ten-report. The official
# splits follow from the names of the files; LISTS=ucfTrainTestlist reads the published lists. The seeds are the plan's,
# unless SEEDS is given.
real:
	@test -n '$(CLIPS)' || { echo 'make real CLIPS=UCF-101: give the folder of UCF-101 videos, one folder per class'; exit 2; }
	@$(MAKE) --no-print-directory install
	$(BIN)/covid-cmsf preprocess '$(CLIPS)' --out clips/ucf101-ten --layout ucf101 $(if $(LISTS),--splits '$(LISTS)') --classes $(TEN) --short-edge 60 --flow-backend numba-fast --workers 2
	$(BIN)/covid-cmsf cotrain real/ucf101-ten --clips clips/ucf101-ten $(if $(filter-out file,$(origin SEEDS)),--seeds '$(SEEDS)') --out runs/ucf101-ten --parallel 2
	$(BIN)/covid-cmsf report runs/ucf101-ten --out runs/ucf101-ten-report

lint: ruff mypy

ruff: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy: install
	$(BIN)/mypy

# One thread per test process: two cores are quickly oversubscribed.
test test-fast coverage: export OMP_NUM_THREADS = 1

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS) --durations=25

# What took longest is printed: mark it `slow`. A file's tests stay in one process, so its fixtures are built once.
test-fast: ruff
	$(BIN)/python -m pytest $(PYTEST_ARGS) --dist loadfile -m 'not slow and not real' --durations=10 --durations-min=1

# Not a part of `make test`, which needs no network. --strict: what could not be looked up is an error, not "none found".
audit: install
	@$(BIN)/python -m pip_audit --version > /dev/null 2>&1 || $(BIN)/pip install --quiet pip-audit
	$(BIN)/python -m pip_audit --requirement requirements/tested.txt --no-deps --disable-pip --strict

coverage: install
	$(BIN)/python -m pytest $(PYTEST_ARGS) --cov
	$(BIN)/coverage html

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# No page needs the network: neither while it is built nor while it is read.
docs: install
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) $(DEMO) runs/demo runs/demo-report build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage htmlcov
