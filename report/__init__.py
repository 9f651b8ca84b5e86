"""The report: from results to conclusions, sentences, Markdown and one HTML page.

::

    build.py            `python -m report.build`: build the report
    reproduce.py        `python -m report.reproduce`: run the study again, compare with the frozen results
    results.py          all numbers of the report, from studies or frozen ones
    conclusions.py      named conclusions, computed from the tables
    compared.py         conclusions on the comparison of policies
    wording.py          phrases from numbers
    compared_words.py   sentences on the comparison of policies
    compiled.py         sentences and cells on compiled models
    reliability.py      the reliability card, from frozen findings
    on_gpu.py           what was measured on GPUs
    set_up.py           the table of settings
    render.py           Markdown and HTML
    front.py            the table in the README
"""
