"""The kernel's end of JupyterLab's sidebar: requests come in, state goes out."""
