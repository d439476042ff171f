# `make book` and `make test` set up what they need; Python 3.11 to 3.13 and make are all that has to be there.
PYTHON ?= python3
PROFILE ?= cpu
# Another package index for torch, such as the one of its CPU builds; empty: PyPI alone.
TORCH_INDEX ?=

BIN := .venv/bin
READY := .venv/.installed
LAB_SETTINGS := .venv/etc/jupyter/labconfig/default_setting_overrides.json

.PHONY: book test bench lint format lab live serve pdf zip record clean

book: $(READY)
	$(BIN)/python -m staircase_lib book --profile $(PROFILE)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

# Speed, as ratios to what one would do otherwise; about ten minutes, on an idle machine. Chapters and pages are
# those of the last `make book`.
bench: $(READY)
	$(BIN)/pip install --quiet --no-deps -r benchmarks/requirements.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest benchmarks -o python_files='bench_*.py' --record book/results/benchmarks.json

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# Chapters, which are Markdown, open as notebooks on a double click.
lab: $(READY)
	$(BIN)/python -m jupytext_config --settings-file $(LAB_SETTINGS) set-default-viewer markdown
	$(BIN)/jupyter lab book/introduction.md

# The pages as they are built, with code that runs in them; on this machine only.
live: $(READY)
	$(BIN)/python -m staircase_lib live

serve: book
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html 8000

# The book on paper, and its pages as one file; both from what `make book` has built.
pdf zip: book
	$(BIN)/python -m staircase_lib $@

# Measure every claim at profile cpu, then write book/results/ledger.json.
record:
	$(MAKE) book PROFILE=cpu
	$(BIN)/python -m staircase_lib record

clean:
	rm -rf _build .venv

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("Python 3.11 to 3.13 needed, %s is %d.%d: give another, as in make book PYTHON=python3.12" % (sys.executable, *v))'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@
