"""Which tests run with which TransformerLens."""

import pytest

from anchor_interp.models.transformer_lens import VERSION_3

only_3 = pytest.mark.skipif(not VERSION_3, reason="builds models that only TransformerLens 3 has")
only_4 = pytest.mark.skipif(VERSION_3, reason="tests what only TransformerLens 4 has")
