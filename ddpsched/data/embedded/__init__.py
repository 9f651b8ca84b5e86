"""The default data: short film reviews that the program composes itself, without network or files.

::

    sentences.py          the sentences, their labels, and the tokenizer that knows their words
    length_histogram.py   the lengths of SST-2's sentences
"""
