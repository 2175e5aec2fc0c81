"""What users see in IPython: the magics, and the session behind them."""
