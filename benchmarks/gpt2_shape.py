"""``anchor-interp analyze`` on weights of GPT-2 small's shape, which have no anchor task.

Writes a random HookedTransformer of 12 layers, 12 heads, d_model 768 and 50,257 tokens to a
temporary file, analyses it with the command on one thread, and tells how long that took, how much
memory, and how many matrices and heads the page is about::

    python benchmarks/gpt2_shape.py > docs/evidence/gpt2_shape.json
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from safetensors.torch import save_file

from anchor_interp.models.lens import HookedTransformer, HookedTransformerConfig
from measuring import machine


def main() -> None:
    """Make the model, analyse it and print one JSON object."""
    cfg = HookedTransformerConfig(
        n_layers=12, d_model=768, n_ctx=1024, d_head=64, n_heads=12, d_mlp=3072, d_vocab=50257,
        act_fn="gelu_new", normalization_type="LN", seed=0, device="cpu",
    )  # fmt: skip
    warnings.simplefilter("ignore", DeprecationWarning)  # of HookedTransformer in TransformerLens
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "gpt2-small-shape.safetensors", Path(folder) / "out"
        model = HookedTransformer(cfg)
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, file)
        size = file.stat().st_size
        del model
        began = time.perf_counter()
        command = [sys.executable, "-m", "anchor_interp", "analyze", str(file), "--out", str(out)]
        alone = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=alone, stdout=sys.stderr)  # ours is the JSON's
        seconds = time.perf_counter() - began
        told = json.loads((out / "analysis.json").read_text(encoding="utf-8"))
        pictures = sorted(path.name for path in (out / "figures").iterdir())
    found = {
        "schema": 1,
        "machine": machine(),
        "bytes_of_weights": size,
        "seconds": round(seconds, 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "matrices": len(told["complexity"]["matrices"]),
        "heads": len(told["complexity"]["heads"]),
        "figures": pictures,
        "left_out": told["left_out"],
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
