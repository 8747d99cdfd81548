"""What the machine did to a run, in words: its part of a prediction's error beside the model's."""

from __future__ import annotations

from collections.abc import Sequence

from partita.nouns.probe import RESTLESS
from partita.page.agreement import relative_error
from partita.page.text import percent, seconds
from partita.simulate.run_speed import DeviceSpeed, RunSpeed


def sentences(run: RunSpeed, predicted_s: float, measured_s: float) -> list[str]:
    """What is to be told, the most important first.

    >>> run = RunSpeed(0.5, 0.46, 0.54, (DeviceSpeed("cpu0", 1.0, 1.0), DeviceSpeed("cpu1", 1.0, 0.7)), 0.1)
    >>> for line in sentences(run, 0.4, 0.51): print(line)
    At the speeds that the devices had in this run, 500 ms are predicted: 2.0 % off, which is the model's part.
    The machine's part: -20 %. cpu1 ran at 0.70 of the speed that the plan was made for.
    """
    model, machine = relative_error(run.step_s, measured_s), relative_error(predicted_s, run.step_s)
    lines = [
        f"At the speeds that the devices had in this run, {seconds(run.step_s)} are predicted: "
        f"{percent(abs(model))} off, which is the model's part."
    ]
    changed = " ".join(device_changes(run.devices))
    lines.append(f"The machine's part: {percent(machine, signed=True)}. {changed}".strip())
    return lines + doubts(run.spread)


def doubts(spread: float) -> list[str]:
    """What is to be told where the probe varied by too much: one sentence, or none.

    >>> doubts(0.2), doubts(0.75)
    ([], ['What the probe said varied by 75 %: no number here can be trusted to better than that.'])
    """
    if spread <= RESTLESS:
        return []
    return [f"What the probe said varied by {percent(spread)}: no number here can be trusted to better than that."]


def device_changes(devices: Sequence[DeviceSpeed]) -> list[str]:
    """A sentence for every device that was clearly slower or faster than the plan was told."""
    return [f"{d.device} ran at {d.change:.2f} of the speed that the plan was made for." for d in devices if d.changed]


def advice(old_s: float, new_s: float) -> str:
    """What a new plan would bring."""
    return f"At these speeds a new plan would take {seconds(new_s)} a step, this one {seconds(old_s)} (--replan)."


def gain(old_s: float, new_s: float, worth_it: bool) -> str:
    """What planning again came to.

    >>> gain(0.26, 0.21, True)
    'Planned again: 210 ms a step instead of 260 ms.'
    """
    if worth_it:
        return f"Planned again: {seconds(new_s)} a step instead of {seconds(old_s)}."
    return f"The plan stays: {seconds(old_s)} a step at these speeds, and no other plan found is clearly faster."
