"""The samples of a data set and their lengths: read from files, folders or the hub, tokenised and cached. No torch.

::

    config.py         [data]
    table_files.py    columns of TSV, CSV, JSON lines and Parquet
    row_source.py     rows in chunks, and the fingerprint of a data set
    tokenizer.py      tokenizers by folder, file or hub name; texts, or prompts and texts, encoded
    token_table.py    token ids of a data set: cached, on demand, or documents joined and cut at a context length
    samples.py        the splits of a data set, from a file, a folder, the hub, or embedded, and tokenised
    lengths.py        lengths by id, which planning reads
    length_files.py   lengths from a file of numbers or of texts
    order_file.py     an order on disk
    array_cache.py    arrays kept between runs
    hub.py            no waiting for the hub without network
    embedded/         sentences as long as SST-2's, composed by the program
"""
