"""The report: from frozen studies to sentences, Markdown, HTML pages and PDFs.

::

    build.py            `python -m report.build`: build the report
    reproduce.py        `python -m report.reproduce STUDY`: run a frozen study again, compare its verdicts
    results.py          what is read: studies with their records, files of benchmarks
    measures.py         a setting's numbers, with intervals of launches
    shift.py            the study of lengths that change their law
    conclusions.py      named conclusions, computed from the records
    wording.py          phrases from numbers
    sentences.py        the report's sentences on its studies
    over_others.py      sentences on plans beside other packages', in the same launches
    repeated.py         sentences on studies that were run again
    in_trainer.py       tables and sentences on transformers' Trainer
    computed.py         sentences on what was computed: plans of an epoch, the simulator
    figures.py          the figures of the report and of its appendix
    compiled.py         sentences and cells on compiled models
    reliability.py      the reliability card, from frozen findings
    auto.py             what policy auto took, against the best of its candidates
    on_gpu.py           what was measured on GPUs
    set_up.py           the table of settings, and which device each study ran on
    same_work.py        whether a study that ran again did the frozen one's work
    render.py           Markdown, from the templates: template.md of the report, template_tables.md of the appendix
    reading.py          Markdown as tokens, with figures and the ids of headings
    html.py             one HTML page; style.css is its look, sort.js sorts its tables
    pdf.py              a PDF, by typst; paper.typ is its look
    typst_markup.py     tokens as typst markup, in which no text is code
    front.py            the figure and table in the README
"""
