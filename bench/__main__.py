"""`python -m bench`: see the modules beside this one, in the order in which they are run here."""

import sys

from bench import (
    admission,
    agent,
    apiserver,
    growth,
    informers,
    interposer,
    ledger,
    prepare,
    run,
    scale,
    start,
    webhook,
)

MEASURES = (run, interposer, start, agent, prepare, admission, webhook, apiserver, informers, ledger, growth, scale)
sys.exit(next((code for code in (measure.main() for measure in MEASURES) if code), 0))
