"""The device plugin: slots of an extended resource, and the sessions behind them."""
