"""`sluiceway top`: live display of a broker in a terminal.

    course    rates, ages and forecasts from counters that were seen at several moments
    picture   one answer of the broker as rows: what each view shows, before it is drawn
    columns   columns of a view, the words for their values, and the choice for a width
    chains    «waits on …», step by step, from one row to the root cause
    feed      asks the broker again and again; says when it is gone and when it is back
    app       the terminal (Textual); screens has help, filter and the chain
    plain     the same as plain text or JSON, for pipes (`--once`, `--json`)

All but `feed` and `app` are pure: the broker's answers and the time come in, rows come out. So what is shown is tested
without a terminal.

Nothing is imported here: a command that has nothing to do with it must not load Textual.
"""
