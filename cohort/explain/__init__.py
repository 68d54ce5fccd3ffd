"""What ``cohort explain`` knows: docstrings, presets, key docs and the table of metrics, put together and never copied.

docstring   the house's docstrings, taken apart: formula, paper, wrong choice, options
catalogue   every name that can be explained, by kind; imports no torch
entries     a name -> an ``Explanation``; imports torch where an algorithm is meant
presets     the same for a preset: its header, its parts, the keys in which it differs from the schema
example     an advantage worked step by step, by the registered function itself
show        an ``Explanation`` for the terminal
pages       the same as the pages of ``docs/algorithms/``
"""
