"""What later papers say of when training infers, tested on anchors; a file has a paper's runs.

Their texts are paraphrased in a claim's sentence. The verdicts stand in ``docs/field.md``.
"""
