"""``anchor-interp analyze`` on weights of GPT-2 small's shape, which have no anchor task.

Writes a random HookedTransformer of 12 layers, 12 heads, d_model 768 and 50,257 tokens to a
temporary file, analyses it with the command on one thread, and tells how long that took, how much
memory, and how many matrices and heads the page is about; and what patching a site costs, in
forward passes of as many sequences. Processor time, so that other work on the machine, whose load
(processes that want a core) is beside it, changes it less::

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
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

import anchor_interp
from anchor_interp.models.transformer_lens import HookedTransformer, HookedTransformerConfig
from measuring import Row, machine, number, table


def patching(model: HookedTransformer) -> float:
    """CPU time of patching a site over that of a forward pass: the median of three, interleaved."""
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = torch.randint(model.cfg.d_vocab, (2, 8, 64), generator=generator)
    answers, wrong = torch.randint(model.cfg.d_vocab, (2, 8), generator=generator)
    clean_examples = anchor_interp.Examples(clean, answers, wrong)
    corrupted_examples = anchor_interp.Examples(corrupted, answers, wrong)
    sites = [
        anchor_interp.Site("resid_pre", layer, position)
        for layer in range(0, model.cfg.n_layers, 2)
        for position in (10, 63)
    ]
    metric = anchor_interp.logit_difference(clean_examples)

    def plain() -> None:
        with torch.no_grad():
            model(clean)

    def patched() -> None:
        anchor_interp.patch(model, clean_examples, corrupted_examples, sites, metric)

    def seconds(work: Callable[[], None]) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return median(seconds(patched) / len(sites) / seconds(plain) for _ in range(3))


def tables(found: Row) -> dict[str, str]:
    """The JSON as one table."""
    head = ["analysis", "memory", "a patched site", "aim, at most", "load before"]
    line = [
        f"{number(found['cpu_seconds'])} s", f"{found['peak_bytes'] / 1e9:.1f} GB",
        f"**{found['forward_passes_a_patched_site']}** forward passes", "2", f"{found['load']}",
    ]  # fmt: skip
    return {"costs": table(head, [line])}


def main() -> None:
    """Make the model, analyse it and print one JSON object."""
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)
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
        forward_passes = round(patching(model), 2)
        del model
        command = [sys.executable, "-m", "anchor_interp", "analyze", str(file), "--out", str(out)]
        alone = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=alone, stdout=sys.stderr)  # ours is the JSON's
        child = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = json.loads((out / "analysis.json").read_text(encoding="utf-8"))
        pictures = sorted(path.name for path in (out / "figures").iterdir())
    found = {
        "schema": 1,
        "machine": machine(),
        "load": load,
        "bytes_of_weights": size,
        "cpu_seconds": round(child.ru_utime + child.ru_stime, 1),
        "peak_bytes": child.ru_maxrss * 1024,
        "matrices": len(told["complexity"]["matrices"]),
        "heads": len(told["complexity"]["heads"]),
        "figures": pictures,
        "left_out": told["left_out"],
        "forward_passes_a_patched_site": forward_passes,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
