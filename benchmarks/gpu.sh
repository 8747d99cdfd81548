#!/usr/bin/env bash
# The GPU checks, for a machine that has at least one GPU:   bash benchmarks/gpu.sh DIR [DATA]
#
# Raw JSON goes to DIR, with the facts of the machine; DATA, if given, holds CIFAR-10's train.parquet.
# Two kinds of run: a worker a GPU (NCCL), and two workers that share the first GPU (gloo, staged through pinned memory).
# A check that fails does not stop the others: its exit code and its last words are in DIR/summary.json.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: bash benchmarks/gpu.sh DIR [DATA]}
data=${2:-}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"

gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())') || exit 2
if [ "$gpus" -lt 1 ]; then
    echo "no GPU here: torch.cuda.device_count() is 0. hint: install a CUDA build of torch, and look at nvidia-smi" >&2
    exit 2
fi

"$python" - > "$out/machine.json" <<'PY'
import json
from partita.training.measure.machine import machine_facts
print(json.dumps(machine_facts()))
PY

check() { # check NAME COMMAND...: stdout to NAME.json, stderr to NAME.log
    name=$1
    shift
    echo "== $name: $*" >&2
    "$@" > "$out/$name.json" 2> "$out/$name.log"
    echo "{\"name\": \"$name\", \"exit\": $?}" >> "$out/.checks"
    tail -n 3 "$out/$name.log" >&2
}

rm -f "$out/.checks"
check demo "$python" -m partita demo --json --devices "$gpus" -o "$out/demo"
check prediction "$python" benchmarks/prediction.py --json --devices "$gpus"
if [ -n "$data" ]; then
    check pipeline "$python" benchmarks/pipeline.py --json --data "$data" --devices "$gpus"
fi

# a worker's GPU is the number at the end of its device's name: two names with one number share a GPU
cat > "$out/shared.toml" <<'TOML'
source = "given"
[[device]]
name = "first:0"
kind = "cuda"
[[device]]
name = "second:0"
kind = "cuda"
[link]
rate_bytes_per_s = 5e9
latency_s = 50e-6
TOML
job=$("$python" -c 'from partita import demo_job; print(demo_job.__file__ + ":job")')
check shared-measure "$python" -m partita measure "$job" --json --devices 1 --micro-batch-sizes 8,16 -o "$out/profile.json"
check shared-plan "$python" -m partita plan "$out/profile.json" --json --cluster "$out/shared.toml" --stages 2 --no-replicas -o "$out/plan.json"
check shared-run "$python" -m partita run "$job" --json --plan "$out/plan.json" --steps 40 -o "$out/shared"

"$python" - "$out" <<'PY'
import json, sys
from pathlib import Path
out = Path(sys.argv[1])
checks = [json.loads(line) for line in (out / ".checks").read_text().splitlines()]
for c in checks:
    c["last_words"] = (out / f"{c['name']}.log").read_text().splitlines()[-3:]
(out / "summary.json").write_text(json.dumps({"machine": json.loads((out / "machine.json").read_text()), "checks": checks}, indent=1))
print(out / "summary.json")
sys.exit(any(c["exit"] for c in checks))
PY
