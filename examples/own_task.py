"""A task of one's own in one file: write a word backwards.

    python examples/own_task.py runs/reverse
    ANCHOR_INTERP_TASKS=examples/own_task.py anchor-interp report runs/reverse

The training set has words of up to six letters. The model is judged on other words of that length
(ID) and on words of seven and eight letters (OOD).
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anchor_interp as ai
from anchor_interp.tasks.hashing import random_integers

LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Reverse(ai.Task):
    """Write a word backwards; tested on words that are longer than those of the training set."""

    kind: Literal["reverse"] = "reverse"
    """The name of this task in files."""
    longest: int = 6
    """Most letters of a training word."""

    words = (".", "->", *LETTERS)
    end = 0
    splits = (ai.Split("train", "train"), ai.Split("id", "id"), ai.Split("ood", "ood"))

    @property
    def length(self) -> int:
        """The longest word twice, and the arrow."""
        return 2 * (self.longest + 2) + 1

    def examples(self, split: str, n: int, *, seed: int) -> ai.Dataset:
        """N words with their answers; the sum of a word's letters decides whether it is ID."""
        low, high = (self.longest + 1, self.longest + 2) if split == "ood" else (2, self.longest)
        sizes = random_integers(n, high - low + 1, seed=seed, stream=f"reverse/{split}/size") + low
        drawn = random_integers(n * high, 8, seed=seed, stream=f"reverse/{split}/letters")
        prompts, answers = [], []
        for size, letters in zip(sizes, drawn.reshape(n, high), strict=True):
            word = letters[:size]
            if split != "ood":  # ID words have a sum of 0 modulo 8, training words another one
                remainder = 0 if split == "id" else 1 + word[-1] % 7
                word[-1] = (remainder - word[:-1].sum()) % 8
            prompts.append([*(2 + word), 1])
            answers.append([*(2 + word[::-1]), self.end])
        return ai.Dataset.of(prompts, answers)


def config(steps: int = 2_000) -> ai.RunConfig:
    """A run of a small model."""
    return ai.RunConfig(
        Reverse(),
        ai.ModelConfig(n_heads=4, d_model=64, d_head=16, normalization="pre", d_vocab=10, n_ctx=17),
        ai.InitConfig(gamma=0.8),
        ai.TrainConfig(n_sequences=4_000, batch_size=64, lr=2e-3, steps=steps),
    )


if __name__ == "__main__":
    given = sys.argv[1:] or sys.exit(__doc__)
    out, steps = Path(given[0]), int((given[1:] or ["2000"])[0])
    run = ai.train(config(steps), out)
    print(f"{run.phase}: {run.reason}")
    print(run.answer(["a b c d ->", "h g f e d c b a ->"]))
