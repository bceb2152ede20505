"""Plans without ranks: a collective's plans of all ranks are proved, priced, and written for other simulators, in one process.

``calls`` makes the plans of a call, ``promises`` says what a call is given and has to leave, ``program`` is the steps of all ranks with
the messages between them; ``proof`` runs them on symbols in the place of bytes (``memory``, ``terms``), and looks for steps that are not
ordered (``races``). ``figures`` counts what they need; ``price`` lets them take their time on a ``network``, by ``classes`` of ranks that do
the same; ``goal`` writes them as text.
"""
