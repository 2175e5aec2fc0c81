"""What a user touches in IPython: the magics, and the session behind them."""
