"""moto, without what it does again and again for the same result.

Half of the processor time of a request went into lists of moto's folders and methods, and half of a
second at its start into images that no test asks for.
"""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import patch

from jupyter_sky.providers.sessions.boto import make_session

IMAGE = "ami-1e749f67"
"""One of Ubuntu's images that moto has, the only one that is there."""


def application() -> Any:
    """Return moto's server, as an application of WSGI."""
    import boto3

    # It makes several sessions to learn which regions there are, and each would read that anew.
    session = make_session()
    with patch.object(boto3, "Session", lambda: session):
        from moto import backends
        from moto.core import responses
        from moto.ec2.models import amis
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    known = backends.list_of_moto_modules
    if not isinstance(known, functools.partial):  # else it has been done
        modules = tuple(known())
        backends.list_of_moto_modules = functools.partial(iter, modules)
        responses.method_names_from_class = functools.cache(responses.method_names_from_class)
        # Each image has a disk, so that there are 1,301 snapshots of others.
        kept: Any = amis
        kept.AMIS = [each for each in kept.AMIS if each["ami_id"] == IMAGE]
        kept.environ = {"MOTO_AMIS_PATH": "as if these were ours, there are no others"}
    return DomainDispatcherApplication(create_backend_app)
