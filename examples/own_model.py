"""A model of one's own: any HookedTransformer, here 3 layers of 4 heads with its own vocabulary.

python examples/own_model.py runs/own
anchor-interp analyze runs/own/weights.safetensors --task runs/own/task.json --out runs/own/page
anchor-interp verdict runs/own/weights.safetensors --task runs/own/task.json
"""

import dataclasses
import json
import sys
from pathlib import Path

import anchor_interp as ai
from anchor_interp.models.transformer import HookedTransformer
from anchor_interp.runs.export import save_transformer

TASK = ai.AnchorTask(unseen=((3, 4), (4, 3)), key_min=30, key_max=79, length=8)
SHAPE = {"n_layers": 3, "n_heads": 4, "d_model": 32, "d_head": 8, "d_vocab": 110, "n_ctx": 8}
if __name__ == "__main__":
    (out := Path((sys.argv[1:] or sys.exit(__doc__))[0])).mkdir(parents=True, exist_ok=True)
    model = HookedTransformer(SHAPE | {"act_fn": "gelu", "device": "cpu"})  # yours
    save_transformer(model, out / "weights.safetensors")
    (out / "task.json").write_text(json.dumps(dataclasses.asdict(TASK)))
    print(f"{out}/weights.safetensors and {out}/task.json are written; analyze reads both")
