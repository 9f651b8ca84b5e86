"""Records in, tables and figures out: load -> settings -> metrics -> tables -> figures.

::

    load.py              the finished runs of a study
    freeze.py            `python -m analysis.freeze`: a study in two files, to be committed
    run_files.py         a run's files, checked as they are read
    settings.py          which runs are compared: settings, arms, static partners
    launches.py          when launches ran, and whether their times can be compared
    metrics.py           records to numbers: a row per step, per run, per ratio of arms
    stats.py             intervals of ratios over launches, Holm's correction, verdicts
    ratios.py            which times are compared, in which pairs, above which noise
    compare_runs.py      `ddpsched runs compare`: any two arms
    tables.py            the metrics of a setting as tables
    style.py             size, type and colours of figures
    labels.py            names beside lines and points, moved apart
    figures.py           figures 1 to 5 of the report, a function each, and on one page
    draw.py              figures written into folders
    draw_bench.py        figures of ratios above the noise, and of drift
    speeds.py            throughput over static's, and the noise floor
    draw_speeds.py       throughput as bars
    step_parts.py        what the time of a step went to
    draw_step_parts.py   these parts as stacked bars
    tradeoffs.py         speed beside order bias and peak memory
    draw_tradeoffs.py    these as named points
    draw_print.py        these figures of a setting written into a folder
    step_blocks.py       padding and waiting of one step
    draw_step_blocks.py  these as rectangles
    draw_shift.py        step times along a change of lengths
    arms.py              the arms of a setting: speed, padding, balance, bias
    batches.py           padding, balance and size of a run's steps
    curves.py            training loss against samples and time
    draw_curves.py       these curves as a figure
    stability.py         spread of gradient norms, and rises of the loss
    compiled.py          arms of a compiled model beside eager ones
    draw_compiled.py     their step times as a figure
    comparison.py        `python -m analysis.comparison`: all arms of each setting
    speed_up.py          step times over the number of ranks, computed, as a table and a figure
    terminal.py          the comparison as a table in the terminal
    timeline.py          `python -m analysis.timeline`: the timeline of a run
    waits.py             the rank that was ready last in each step, and how long the others waited
    draw_timeline.py     steps of a timeline as a figure
    transfers.py         messages of gradients, from timelines
    trace.py             a timeline for ui.perfetto.dev
"""
