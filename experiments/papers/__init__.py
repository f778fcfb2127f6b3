"""Both papers, claim by claim: studies, what they measure, claims, judging, page.

Waiting threads of OpenMP sleep here: spinning ones slow a busy machine down. Torch reads the
setting when it loads.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
