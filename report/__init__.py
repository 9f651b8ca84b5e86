"""The report: from results to conclusions, sentences, Markdown, one HTML page and a PDF.

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
    render.py           Markdown, from the template
    reading.py          Markdown as tokens, with figures and the ids of headings
    html.py             one HTML page; style.css is its look, sort.js sorts its tables
    pdf.py              a PDF, by typst; paper.typ is its look
    typst_markup.py     tokens as typst markup, in which no text is code
    front.py            the table in the README
"""
