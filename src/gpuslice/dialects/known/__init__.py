"""The dialects, one module each. `registry` finds every module in this folder; its `DIALECT` declares all there is."""
