"""The broker over HTTP, on a port of its own: JSON API, actions, console, metrics, health.

    config ──▶ AdminServer (server.py) ──▶ connections (http.py, Hypercorn) ──▶ app.py (Starlette)
                                                                                  │ who asks, and may they: access.py
               broker ◀── small steps (steps.py) ◀── answers: state.py, flowmap.py, messages.py, actions.py
                                                          └── rates: sampling.py

`routes.py` is the table of all requests; the app, the OpenAPI document and the guide's reference come from it.

Whatever is made of many parts (ten thousand subscriptions, a hundred thousand destinations) is made in steps of a
millisecond or two with messages going on in between, and the whole of it takes a share of the time only
(`steps.StepPace`). So a picture is not of one moment.

Input of a client is data: names are parsed as destinations, text is returned as JSON strings, no input is ever a path
of a file or a template. A bug of the broker is a 500 with an id that is in the log, too; its traceback is only there.

Nothing here is imported by a broker without an admin port.
"""
