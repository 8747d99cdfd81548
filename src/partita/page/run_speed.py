"""What the machine did to a run, in words: its part of a prediction's error beside the model's."""

from __future__ import annotations

from partita.page.agreement import relative_error
from partita.page.text import percent, seconds
from partita.simulate.run_speed import RunSpeed


def sentences(run: RunSpeed, predicted_s: float, measured_s: float) -> list[str]:
    """What is to be told, the most important first.

    >>> run = RunSpeed(0.5, 0.46, 0.54, (DeviceSpeed("cpu0", 1.0, 1.0), DeviceSpeed("cpu1", 1.0, 0.7)), 0.1)
    >>> for line in sentences(run, 0.4, 0.51): print(line)
    At the speeds that the devices had in this run, 500 ms are predicted: 2.0 % off, which is the model's part.
    The machine's part: -20.0 %. cpu1 ran at 0.70 of the speed that the plan was made for.
    """
    model, machine = relative_error(run.step_s, measured_s), relative_error(predicted_s, run.step_s)
    lines = [
        f"At the speeds that the devices had in this run, {seconds(run.step_s)} are predicted: "
        f"{percent(abs(model))} off, which is the model's part."
    ]
    changed = " ".join(changes(run))
    lines.append(f"The machine's part: {percent(machine, signed=True)}. {changed}".strip())
    if run.restless:
        lines.append(
            f"The probe's readings varied by {percent(run.spread)}: no number here can be trusted to better than that."
        )
    return lines


def changes(run: RunSpeed) -> list[str]:
    """A sentence for every device that was clearly slower or faster than the plan was told."""
    return [f"{d.device} ran at {d.change:.2f} of the speed that the plan was made for." for d in run.changed]
