"""The named tasks and runs: at a size for CPUs, and with the released code's size and length."""

from collections.abc import Mapping

from anchor_interp import InitConfig, RunConfig, TrainConfig
from anchor_interp.runs.presets import name_preset
from anchor_interp.tasks.catalog import name_task

from .task import Concepts
from .unet import UNetConfig

TASKS: Mapping[str, Concepts] = {"concepts": Concepts(), "concepts-64": Concepts(pixels=64)}
_WEIGHTS = InitConfig(weights="uniform")
PRESETS: Mapping[str, RunConfig] = {
    "concepts": RunConfig(Concepts(), UNetConfig(predicts="velocity"), _WEIGHTS, TrainConfig(
        n_sequences=5_000, batch_size=32, lr=2e-3, steps=2_000, weight_decay=0.0, eval_every=500)),
    "paper-concepts": RunConfig(
        Concepts(pixels=64), UNetConfig(n_features=256, n_times=500, d_image=64), _WEIGHTS,
        TrainConfig(n_sequences=5_000, batch_size=64, lr=1e-4, steps=23_700, warmup=0.0,
                    weight_decay=0.0, clip=None, eval_every=2_370, checkpoint_every=2_370),
    ),
}  # fmt: skip

for name, task in TASKS.items():
    name_task(name, task)
for name, config in PRESETS.items():
    name_preset(name, config)
