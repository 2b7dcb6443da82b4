"""Every exception class: `tm.errors.DuplicateKey` is `tm.DuplicateKey`. docs/errors.md has a message of each.

Tracebacks and pickles name this module. It is the module of the engine that defines the classes, so that tools which
look up their source find it.
"""

import sys

from tidemark.engine.base import errors
from tidemark.engine.base.errors import *

sys.modules[__name__] = errors
