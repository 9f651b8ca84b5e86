"""The samples of a data set and their lengths: read from files, folders or the hub, tokenised and cached. No torch.

::

    config.py           [data]
    table_files.py      columns of a local file: TSV, CSV, JSON lines and Parquet
    quarantine.py       rows that cannot be used, left out and named
    row_source.py       open a file, a saved folder or a hub data set such as GSM8K; rows in chunks; a fingerprint
    tokenizer.py        tokenizers by folder, file or hub name; texts, or prompts and texts, encoded
    token_table.py      token ids of a data set: cached, on demand, or documents joined and cut at a context length
    samples.py          the splits of a data set, or embedded ones: checked, and tokenised
    lengths.py          lengths by id, which planning reads
    column_lengths.py   the length of each value of a column: token ids, numbers or texts
    length_files.py     lengths from a file of numbers, a tokenised data set, or texts
    dataset_lengths.py  ddpsched.lengths: those of whatever holds samples
    order_file.py       an order on disk
    array_cache.py      arrays kept between runs
    hub.py              go offline where the hub cannot be reached
    embedded/           sentences as long as SST-2's, composed by the program
    laws/               quantiles of long-tailed lengths, and lengths drawn from them
"""
