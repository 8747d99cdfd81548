"""Planners against every placement (and, for latency, every order) of tiny problems: raw bounds, values, claims."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from placement.plan.every_placement import contiguous, every_order, largest_load, makespan, placements, random_problem

from partita.errors import Infeasible
from partita.nouns.plan import PlacementPlan, PlanFile
from partita.nouns.problem import Problem
from partita.placement.plan import contiguous_plan, makespan as makespan_planner, portfolio, unequal_links
from partita.placement.plan.contiguous_plan import plan_contiguous
from partita.placement.plan.free import plan_free
