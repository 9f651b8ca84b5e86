"""The default data: short film reviews that the program composes itself, without network or files.

::

    sentences.py          the sentences and their labels
    vocabulary.py         their words, and the tokenizer that knows these
    length_histogram.py   the lengths of SST-2's sentences
"""
