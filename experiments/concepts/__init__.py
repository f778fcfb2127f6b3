"""Concept graphs: a task that brings a network of its own, a diffusion model of pictures.

A worked example of :mod:`anchor_interp.tasks.network`. Its runs train, resume, sweep and report as
all others do::

    export PYTHONPATH=experiments ANCHOR_INTERP_TASKS=concepts
    anchor-interp train --preset concepts --out runs/concepts
    anchor-interp report runs/concepts

==============  ======================================================================
module          what it has
==============  ======================================================================
``pictures``    pictures, drawn from numbers
``diffusion``   how noise is added and taken away
``unet``        the network
``training``    what training minimises; what a network draws
``judge``       reads the attributes off a picture
``task``        the task, which brings all of these
``drawings``    what a run's network draws of every node
``figures``     figures of that for reports
``presets``     the named tasks and runs
==============  ======================================================================
"""

from .presets import PRESETS as PRESETS
from .task import Concepts as Concepts
from .unet import UNetConfig as UNetConfig
