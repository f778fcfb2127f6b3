"""Both papers, claim by claim: studies, what they measure, claims, judging, page.

Waiting threads of OpenMP sleep here: spinning ones slow a busy machine down. Torch reads the
setting when it loads.
The folder above is a place of modules, as it is for the scripts there.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if (_ABOVE := str(Path(__file__).resolve().parents[1])) not in sys.path:
    sys.path.append(_ABOVE)
