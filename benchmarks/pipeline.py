"""The pipeline against one process and against torch's own engine, on CIFAR-10, all three in turn on the same batches.

    python benchmarks/pipeline.py --data DIR [--devices 2] [--micro-batches 16] [--rounds 24] [--json]

DIR holds train.parquet as examples/cifar_resnet.py wants it. ResNet of 1,084,586 parameters, batch 64. Each engine runs
the same plan on the same workers, one thread each, pinned; a step is timed from a common start until the last is done.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from partita.cli.talk import Talk
from partita.errors import PartitaError
from partita.page.machine import machine_facts
from partita.page.text import table
from partita.pipeline.plan.planner import plan_pipeline
from partita.pipeline.run.loop import compare_engines
from partita.training.measure.job import measure_job

JOB = Path(__file__).parents[1] / "examples" / "cifar_resnet.py"


def benchmark(data: str, devices: int, micro_batches: int, rounds: int, out: Path, talk: Talk) -> dict[str, Any]:
    """Measure, plan, compare; medians of one interleaved run."""
    source, settings, batch = f"{JOB}:job", {"data": str(Path(data).resolve()), "images_used": "2048"}, 64
    profile = measure_job(source, settings, devices=devices, sizes=(batch // micro_batches,), progress=talk.progress)
    file = plan_pipeline(
        profile, micro_batches=micro_batches, stages=devices, allow_replicas=False, allow_recompute=False
    )
    facts, load = machine_facts(), os.getloadavg()
    found = compare_engines(
        file,
        source,
        settings,
        out,
        rounds=rounds,
        watch=lambda row: talk.progress("steps", min(row.step, rounds), rounds),
    )
    single, pipeline, torch = (found.median_s(e) for e in ("single", "pipeline", "torch"))
    return {
        "single_step_s": single,
        "pipeline_step_s": pipeline,
        "torch_step_s": torch,
        "predicted_step_s": file.verdict.value_s,
        "speedup": single / pipeline,
        "torch_speedup": single / torch,
        "faster_than_torch": torch / pipeline,
        "limit": devices * micro_batches / (micro_batches + devices - 1),
        "load": load,
        "cpu_s": {e: sorted(c)[len(c) // 2] for e, c in found.cpu_s.items()},
        "range_s": {e: [min(s), max(s)] for e, s in found.step_s.items()},
        "gradient_errors": found.gradient_errors,
        "largest_loss_error": found.largest_loss_error,
        "plan": {
            "stages": [len(s.tasks) for s in file.plan.stages],
            "in_flight": file.plan.in_flight,
            "micro_batches": file.plan.micro_batches,
        },
        "facts": facts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--out", metavar="DIR", help="keep the timelines here")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    talk = Talk.to_stderr()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = benchmark(
                options.data, options.devices, options.micro_batches, options.rounds, Path(options.out or folder), talk
            )
    except PartitaError as error:
        talk.error(str(error))
        return error.exit_code
    if options.json:
        print(json.dumps(result))
        return 0
    single = result["single_step_s"]
    rows = [
        [e, result[f"{e}_step_s"], single / result[f"{e}_step_s"], result["cpu_s"][e]]
        for e in ("single", "pipeline", "torch")
    ]
    print(table([("engine", "text"), ("a step", "s"), ("speed-up", "ratio"), ("CPU", "s")], rows))
    print(
        f"limit {result['limit']:.2f}x, predicted {result['predicted_step_s'] * 1e3:.0f} ms, load {result['load'][0]:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
