"""anchor-interp: did this transformer memorize, learn a symmetric shortcut, or infer the rule?

Public names stand in ``__init__.pyi`` and are loaded on first use: importing the package loads
neither torch nor TransformerLens.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
__version__ = "0.1.0"
