"""The report: results -> conclusions and words -> Markdown and one HTML page.

::

    build.py            `python -m report.build`: the report anew
    reproduce.py        `python -m report.reproduce`: the study anew, against the frozen results
    results.py          all numbers of the report, from studies or frozen ones
    conclusions.py      named conclusions, computed from the tables
    compared.py         those of the comparison of policies
    wording.py          numbers as words
    compared_words.py   those of the comparison of policies
    set_up.py           the table of settings
    render.py           Markdown and HTML
    front.py            the table in the README
"""
