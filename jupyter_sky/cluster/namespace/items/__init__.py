"""Items: what ranks are sent if it has changed: values of names, classes, modules, settings."""
