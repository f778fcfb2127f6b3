"""What is done to a model: hooks, masks, ablation, patching, interchange, virtual anchors."""
