#!/usr/bin/env bash
# The GPU checks, in one command, for a machine with one GPU or several:
#
#     bash benchmarks/gpu.sh DIR [--dry-run] [--only NAME,NAME]
#
# A line for each check: ok or FAIL, its name, its figure or what went wrong; exit code 1 if one failed, 2 without a GPU.
# DIR keeps each check's files, output and DIR/summary.json. With --dry-run the same checks run on CPU workers.
set -uo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" benchmarks/gpu_checks.py "$@"
