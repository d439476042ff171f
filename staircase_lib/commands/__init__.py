"""The commands of ``python -m staircase_lib``, a module each; ``terminal`` is what they share."""
