"""``ddpsched sort``: the difficulty of each sample of a data set, and a file of all samples in that order.

Every rank measures chunks of rows, which are kept on disk as parts until all are measured. Then ranks sort them
together and write one file, each its share.

::

    measure.py   the data, the metrics of difficulty, and the measurement of a chunk
    parts.py     measured chunks on disk
    ranks.py     collective operations, for one process or many
    command.py   `ddpsched sort`
"""
