"""``ddpsched sort``: how difficult each sample of a data set is, and the file of all of them in that order.

Every rank measures chunks of rows, which lie on the disk as parts until all are there; then ranks sort them together
and write one file, each its own slice.

::

    metrics.py   what may make a sample difficult, of a chunk of rows
    work.py      what is asked for, chunk by chunk
    parts.py     what is measured so far, on the disk
    ranks.py     one process or many
    command.py   `ddpsched sort`
"""
