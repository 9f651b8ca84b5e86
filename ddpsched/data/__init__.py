"""Where samples and their lengths come from: files, folders, the hub; tokenised, and kept. No torch.

::

    config.py         [data]
    datasets.py       the splits of a data set, from a file, a folder, the hub, or embedded
    table_files.py    columns of TSV, CSV, JSON lines and Parquet
    row_source.py     rows by chunk and by number, and the fingerprint of them all
    tokenizer.py      tokenizers by folder, file or hub name
    encode.py         texts, or prompts and texts, to token ids that keep to max_length
    token_table.py    token ids of a whole set, cached, or on demand
    slices.py         documents joined and cut at a context length
    samples.py        the tokenised splits of a run
    lengths.py        lengths by id: what planning reads
    length_files.py   lengths from a file of numbers or of texts
    order_file.py     an order on disk
    array_cache.py    arrays kept between runs
    hub.py            no waiting for the hub without a network
    embedded/         sentences as long as SST-2's, composed by the program
"""
