"""Anchors of one's own: one shifts a ring of 80 numbers, the other reflects it; order matters.

python examples/own_anchors.py runs/mirror
anchor-interp sweep examples/own_anchors.yaml --out runs/anchors   # several anchors in a sweep
anchor-interp verdict runs/mirror
"""

import sys

import anchor_interp as ai

TASK = ai.AnchorTask(
    anchors=(
        ai.Anchor(1, ai.Affine(add=5, modulus=80, origin=20)),
        ai.Anchor(2, ai.Affine(mul=-1, modulus=80, origin=20)),
    ),
    unseen=((2, 1),),
)

if __name__ == "__main__":
    out, *steps = sys.argv[1:] or sys.exit(__doc__)
    run = ai.train(ai.preset("tiny", task=TASK, steps=int((steps or ["3000"])[0])), out)
    print(f"{run.phase}: {run.reason}")
    for pair in run.evaluation.pair_accuracy:
        print(f"{pair.pair} {pair.role}: {pair.test_keys:.2f} of the test keys")
