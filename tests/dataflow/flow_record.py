"""A small run's record, with a task of every state, written by hand."""

from __future__ import annotations

from partita.dataflow.run.record import ChoiceRow, Chosen, MemoryRow, RunRecord, ScoreRow, TaskRow


def small_record() -> RunRecord:
    """Two scalings, three strengths each; the second scaling's last strength never ran."""
    tasks = [TaskRow("k0", "load", {}, "cached", 0.0, 0.01, "tcp://127.0.0.1:1", 4e6, "", 0, 2)]
    choices = []
    for s, scaling in enumerate(("none", "standard")):
        at = 0.02 + 0.2 * s
        worker = f"tcp://127.0.0.1:{s + 1}"
        tasks.append(TaskRow(f"s{s}", "scale", {"scaling": scaling}, "run", at, at + 0.05, worker, 4e6, "", 1, 3))
        scores = []
        for k, c in enumerate(("0.1", "1", "<10>")):
            options = {"scaling": scaling, "C": c}
            begun = at + 0.06 + 0.03 * k
            if s and k == 2:
                tasks.append(TaskRow("p", "fit & score", options, "pruned", reason="nobody needed it"))
                scores.append(ScoreRow({"C": c}, None, False, "cannot win: convex"))
            elif s == 0 and k == 0:
                tasks.append(
                    TaskRow(
                        "f", "fit & score", options, "failed", begun, begun + 0.01, worker, 0.0, "ValueError: <C>", 1
                    )
                )
                scores.append(ScoreRow({"C": c}, None, False, "failed: ValueError: <C>"))
            else:
                tasks.append(
                    TaskRow(f"m{s}{k}", "fit & score", options, "run", begun, begun + 0.025, worker, 1e5, "", 1 + k, 1)
                )
                scores.append(ScoreRow({"C": c}, 0.9 + 0.01 * k + 0.02 * s, k == 1 + (s == 0), ""))
        choices.append(ChoiceRow("choose C", {"scaling": scaling}, ("C",), "largest", "convex", "", tuple(scores)))
    rows = (ScoreRow({"scaling": "none"}, 0.92, False, ""), ScoreRow({"scaling": "standard"}, 0.93, True, ""))
    choices.append(ChoiceRow("choose scaling", {}, ("scaling",), "largest", None, "", rows))
    memory = tuple(MemoryRow(0.02 * k, f"tcp://127.0.0.1:{1 + k % 2}", 1e6 * (k % 5)) for k in range(20))
    return RunRecord(
        seconds=0.4, started_s=0.9, tasks_run=6, tasks_shared=10, tasks_cached=1, tasks_pruned=1, tasks_cancelled=0, tasks_failed=1,
        configurations=6, branches=8, branches_pruned=1,
        chosen=(Chosen({"scaling": "standard", "C": "1"}, 0.93, None, "LogisticRegression"),), peak_bytes=8e6, workers=2, dropped=1,
        predicted_s=0.42, predictions=((0.05, 0.5, 0.1), (0.1, 0.42, 0.25), (0.3, 0.41, 0.5), (0.39, 0.4, 0.75)), busy_s=0.5, notes=("step <scale> differs",),
        tasks=tuple(tasks), choices=tuple(choices), memory=memory,
    )  # fmt: skip
