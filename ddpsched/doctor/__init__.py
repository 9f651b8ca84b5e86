"""``ddpsched doctor``: try what training needs on this machine; each finding says what was measured and what to do.

::

    pair.py           speed of a process alone and of two at once
"""
