# Every target sets up what it needs: `make demo` and `make test` work on a fresh machine with Python 3.11 and pip.

PYTHON ?= python3
VENV ?= .venv
# The build of torch. CPU:  TORCH='torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu'
#                     CUDA: TORCH='torch==2.13.0+cu130 --extra-index-url https://download.pytorch.org/whl/cu130'
TORCH ?= torch==2.13.0
# UV=0 installs with pip alone, without uv.
UV ?= 1
export UV
# Tests start hundreds of processes, and each would compile torch and transformers again without its bytecode (8 s).
unexport PYTHONDONTWRITEBYTECODE
DATA ?=
NAME ?=
TARGET ?=
ENCODER ?= 127.0.0.1:50051
TOKEN ?=
PYTEST_ARGS ?=
# Test processes. Four suit two cores: half of a test's time is waiting, and threads of torch wait without turning.
WORKERS ?= 4

BIN := $(VENV)/bin
PY := $(BIN)/python
BENCHMARKS := $(notdir $(basename $(shell grep -ls '^if __name__' benchmarks/*/*.py)))
BENCH := $(shell grep -ls '^if __name__' benchmarks/*/$(NAME).py)
PYTEST := $(PY) -m pytest $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-reference test-crash test-demo test-sdk test-integrations test-browser test-chart test-soak conformance check format bench table1 textgraphs nli analogy figure3 own-text proto release docs up down lock clean

help: ## show this list
	@echo "AE-Enc services. Targets:"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from the lock (TORCH='…' chooses the build of torch, UV=0 pip alone); free when nothing changed
	@$(PYTHON) -m tools.setup --venv "$(VENV)" --torch "$(TORCH)"

demo: setup ## the whole loop on the sample, or on DATA=dir in EntailmentBank's layout
	@$(BIN)/aeenc demo $(if $(DATA),--data "$(DATA)")

test: setup ## the default suite: no network, no GPU, WORKERS=4 processes side by side
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-reference: setup ## compare with the published figures (needs data/entailmentbank or AEENC_TEST_DATA; minutes)
	@$(PYTEST) -m reference --timeout 1800

test-crash: setup ## kill processes again and again and look for what was lost
	@$(PYTEST) -m crash --timeout 1800

test-demo: setup ## run the whole demo as a test
	@$(PYTEST) -m demo --timeout 1800

test-integrations: setup ## install each integration of clients/ and use it beside a running fleet (needs a package index)
	@$(PYTEST) -m integrations --timeout 1800

test-browser: setup ## people at the workbench in a real Chromium (Debian: apt-get install chromium; needs package indexes)
	@$(PY) -m pip install -q -e "clients/workbench[test]"
	@cd clients/workbench/page && npm install --no-save --no-audit --no-fund --loglevel=error
	@$(PYTEST) -m browser tests/browser

test-chart: setup ## the Helm chart: rendered, checked, each pod's command started (needs package indexes)
	@$(PY) -m pip install -q -e clients/gateway -e clients/workbench
	@$(PYTEST) -m chart tests/chart

test-sdk: setup ## the SDK at the lowest and highest versions of its dependencies, in Node too; notebooks; the site
	@$(PYTEST) -m sdk --timeout 1800

conformance: setup ## ask an index of yours whether it keeps the contract: TARGET=host:port ENCODER=host:port (TOKEN=…)
	@test -n "$(TARGET)" || { echo "make conformance TARGET=host:port ENCODER=host:port"; exit 2; }
	@AEENC_CONFORMANCE_TARGET="$(TARGET)" AEENC_CONFORMANCE_ENCODER="$(ENCODER)" $(if $(TOKEN),AEENC_CONFORMANCE_TOKEN="$(TOKEN)") \
		$(PYTEST) tests/conformance

test-soak: setup ## keep a fleet under load for a long time
	@$(PYTEST) -m soak --timeout 7200

check: setup ## ruff, mypy, layers of imports, buf, and whether the generated code is fresh
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(PY) -m tools.protos lint
	@$(PY) -m tools.protos breaking
	@$(PY) -m tools.protos check
	@$(PY) -m tools.values check
	@$(PY) -m tools.blocking check

format: setup ## let ruff put the code in order
	@$(BIN)/ruff check --fix --exit-zero
	@$(BIN)/ruff format

bench: setup ## run one benchmark: NAME=x runs benchmarks/*/x.py (with ARGS=…) and writes benchmarks/results/x.json
	@test -n "$(NAME)" && test -f "$(BENCH)" || { echo "make bench NAME=…, one of:" $(BENCHMARKS); exit 2; }
	@$(PY) -m $(subst /,.,$(basename $(BENCH))) $(ARGS)

table1: setup ## the paper's Table 1 into docs/results: what is not measured yet (ARGS='--only NAME', '--list', '--one-seed')
	@$(PY) benchmarks/tables/table1.py $(ARGS)

textgraphs: setup ## graded re-ranking beside the paper's figures: DATA=dir of TextGraphs-2021 (ARGS='--only words' trains nothing)
	@$(PY) -m benchmarks.seeds.textgraphs "$(if $(DATA),$(DATA),data/sample/textgraphs)" $(ARGS)

nli: setup ## four losses on natural language inference: DATA=dir with dev.jsonl or train.jsonl, and test.jsonl (ARGS='--seeds 1')
	@test -n "$(DATA)" || { echo "make nli DATA=dir with dev.jsonl or train.jsonl, and test.jsonl"; exit 2; }
	@$(PY) -m benchmarks.seeds.nli "$(DATA)" $(ARGS)

analogy: setup ## answer selection by analogy beside the paper's Table 1: DATA=dir of WikiQA or TrecQA (ARGS='--vectors FILE')
	@$(PY) -m benchmarks.seeds.analogy $(if $(DATA),"$(DATA)",data/sample/answers --epochs 1) $(ARGS)

figure3: setup ## the paper's Figure 3 into docs/results
	@$(PY) benchmarks/tables/figure3.py $(ARGS)

own-text: setup ## what the query's own text does to the paper's protocol, into docs/results (ARGS='--only NAME')
	@$(PY) benchmarks/tables/own_text.py $(ARGS)

proto: setup ## generate clients/python/aeenc/v1 from protos/, the blocking client from the awaiting one, and the SDK's values
	@$(PY) -m tools.protos generate
	@$(PY) -m tools.blocking generate
	@$(PY) -m tools.values generate

release: setup ## build every distribution twice, check it, write its SBOM into dist/; uploads nothing (needs a package index)
	@$(PY) -m tools.release build $(ARGS)

docs: setup ## build the site into site/, with every link checked
	@$(PY) -m tools.docs

up: setup ## start everything on this machine, state under ./.aeenc
	@$(BIN)/aeenc up

down: setup ## stop what `make up` started
	@$(BIN)/aeenc down

lock: ## write requirements/*.lock again (UPGRADE=--upgrade moves the pins)
	@tools/lock.sh $(UPGRADE)

clean: ## remove environments, caches and builds; .aeenc stays, it holds your data
	@rm -rf .venv .venv-protoc .venv-lock .venv-release .venv-docs .venv-chart build dist site clients/python/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@rm -rf *.egg-info clients/python/*.egg-info clients/typescript/node_modules clients/typescript/build clients/typescript/dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
