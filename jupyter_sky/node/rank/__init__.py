"""The code inside a rank's process: its main loop, IPython shell, namespace, interrupts."""
