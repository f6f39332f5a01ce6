#!/usr/bin/env bash
# Resolves the pyproject files to requirements/*.lock, with hashes, for every platform. Arguments go to uv (--upgrade).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x .venv-lock/bin/uv ]; then
    "${PYTHON:-python3}" -m venv .venv-lock
    .venv-lock/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/uv.lock
fi

# The public index and no machine's own settings: a lock made anywhere is the same.
compile() {
    .venv-lock/bin/uv pip compile --quiet --no-config --default-index https://pypi.org/simple --universal \
        --python-version 3.11 --generate-hashes --custom-compile-command "make lock" "$@"
}

compile --excludes requirements/exclude.txt \
    --extra cli --extra corpus --extra encoder-cpu --extra index-cpu --extra index-milvus --extra index-ray --extra index-lemmas --extra index-tune --extra trainer --extra tracing --extra local --extra reports --extra dev \
    --output-file requirements/cpu.lock "$@" \
    pyproject.toml clients/python/pyproject.toml requirements/install.in
compile --output-file requirements/chart.lock "$@" requirements/chart.in
compile --output-file requirements/docs.lock "$@" requirements/docs.in
compile --output-file requirements/protoc.lock "$@" requirements/protoc.in
compile --output-file requirements/release.lock "$@" requirements/release.in
compile --output-file requirements/uv.lock "$@" requirements/uv.in
