"""Support library of *Context Staircase*, an executable edition of arXiv:2608.30315.

Each module is one noun: :mod:`~staircase_lib.tasks`, :mod:`~staircase_lib.signatures`,
:mod:`~staircase_lib.models`, :mod:`~staircase_lib.training`, :mod:`~staircase_lib.gradients`,
:mod:`~staircase_lib.alignment`, :mod:`~staircase_lib.claims`, :mod:`~staircase_lib.figures` and
:mod:`~staircase_lib.notebooks`. Import the module that you need; importing the package alone
loads nothing else.
"""

__version__ = "0.1.0"
