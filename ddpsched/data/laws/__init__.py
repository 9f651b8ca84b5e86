"""Laws of lengths: quantiles of long-tailed distributions, to plan where there is no data set yet. No texts.

``quantiles.json`` holds, for each law, the tokens at the same 461 quantiles, which are dense at the upper end.

::

    length_laws.py    the laws, each with its source and what it is not; lengths drawn from them
"""
