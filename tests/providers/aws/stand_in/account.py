"""An account at AWS: moto's server over HTTP, and in front of it what moto does not have.

Answers of our own, each as AWS documents it, and only for these:

- placement groups (moto has none),
- prices (moto has no price list, and one price for all spot instances): a price for each type, by
  its number of processors and GPUs, and spot at a third of it,
- the public parameters with the images of Canonical and the Deep Learning AMI,
- ``ClientToken`` of ``RunInstances`` (moto launches twice),
- the regions that the account has enabled (moto has all),
- what becomes of an instance that powers off in ``ModifyInstanceAttribute`` (moto takes no notice),
- tags for the disks of an image in ``CreateImage`` (moto refuses them),
- quotas and capacity reservations, in ``company.py``.

What an instance finds at its own metadata is in ``metadata.py``, what is on its disk in
``machines.py``. moto is imported where it is used: it reads for seconds what AWS has, and each
process that runs tests imports this file.

This is also where things go wrong on purpose: see `Account.at`.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree

from werkzeug.serving import WSGIRequestHandler, make_server

from tests.providers.aws.stand_in.addresses import with_addresses
from tests.providers.aws.stand_in.answer import Answer as Answer
from tests.providers.aws.stand_in.company import Company
from tests.providers.aws.stand_in.prices import disk, prices, product, spot_prices
from tests.providers.aws.stand_in.quicker import IMAGE as IMAGE
from tests.providers.aws.stand_in.quicker import application

REGIONS = ("us-east-1", "eu-west-1")
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1e", "us-east-1f")
_XML = "http://ec2.amazonaws.com/doc/2016-11-15/"
_CREDENTIAL = r"Credential=([^/]+)/[^/]+/([^/]+)"  # who asks, and in which region
_NEVER_CHANGE = ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings")
"""What moto takes seconds to say; each file of tests asks for it, and each notebook."""
_OF_CLUSTERS = ("i-", "vol-", "sir-", "key-", "sg-")  # what a test gives back, by its prefix

Environ = dict[str, Any]
Params = dict[str, str]


class CutConnection(Exception):
    """Ends the connection without an answer."""


@dataclass(frozen=True)
class Call:
    """A request to AWS.

    Attributes
    ----------
    number
        Which one it is, counted from 1.
    action
        What is wanted, like ``"RunInstances"``.
    who
        The access key of who asks.
    """

    number: int
    action: str
    params: Params
    who: str


Fault = Callable[[Call, Callable[[], Answer]], Answer]
"""Decides what becomes of a call: it gets the call, and what carries it out."""


@dataclass
class Account(Company):
    """A server that answers as AWS does.

    Attributes
    ----------
    url
        Where it listens, for ``AWS_ENDPOINT_URL``.
    calls
        What was asked of it.
    fault
        What becomes of calls; without one they are carried out.
    on_run, on_terminate, on_stop, on_start
        Called with each instance that begins or ends, or is stopped and started again: its id; for
        new ones also the address and what was asked for.
    addresses
        The public addresses of instances, in place of those that moto thinks of.
    on_image
        Called with each image that is made: its id, and that of the instance.
    on_rules
        Called when it has changed who may log in.
    public_keys
        What was imported, by name.
    """

    url: str = ""
    calls: list[Call] = field(default_factory=list)
    fault: Fault | None = None
    on_run: Callable[[str, str, Params], None] = lambda instance, address, params: None
    on_terminate: Callable[[str], None] = lambda instance: None
    on_stop: Callable[[str], None] = lambda instance: None
    on_start: Callable[[str], None] = lambda instance: None
    on_image: Callable[[str, str], None] = lambda image, instance: None
    on_rules: Callable[[], None] = lambda: None

    addresses: dict[str, str] = field(default_factory=dict)
    public_keys: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moto = application()
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str], dict[str, str]] = {}  # by region and name
        self._by_token: dict[str, Answer] = {}
        self._answers: dict[tuple[object, ...], Answer] = {}
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Empty the account."""
        from moto.core.base_backend import BackendDict
        from moto.core.models import reset_model_data

        with self._lock:
            self.fault = None
            self._groups.clear()
            self._by_token.clear()
            self.calls.clear()
            BackendDict.reset()
            reset_model_data()

    def forget_ended(self) -> None:
        """Forget instances that have ended, as AWS does, and the tags of what is no longer there.

        Each answer would be longer by them, and moto compares all tags that there ever were with
        each thing that it looks for.
        """
        from moto.ec2.models import ec2_backends

        with self._lock:
            for regions in ec2_backends.values():
                for backend in regions.values():
                    for name, reservation in list(backend.reservations.items()):
                        if all(each._state.name == "terminated" for each in reservation.instances):
                            del backend.reservations[name]
                    there = {each.id for each in backend.all_instances()} | {*backend.volumes}
                    there |= {each.id for each in backend.key_pairs.values()}
                    there |= {each for groups in backend.groups.values() for each in groups}
                    there |= {*backend.spot_instance_requests}
                    for resource in list(backend.tags):
                        if resource.startswith(_OF_CLUSTERS) and resource not in there:
                            del backend.tags[resource]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What a process has to have in its environment to come here, and nowhere else."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def actions(self) -> list[str]:
        """What was asked for, in order."""
        return [call.action for call in self.calls]

    # Serving

    def _serve(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        params = _params(body)
        action = params.get("Action") or environ.get("HTTP_X_AMZ_TARGET", "?").split(".")[-1]
        signed = re.search(_CREDENTIAL, environ.get("HTTP_AUTHORIZATION", ""))
        who, region = signed.groups() if signed else ("", "")
        with self._lock:
            call = Call(len(self.calls) + 1, action, params, who)
            self.calls.append(call)
        environ = {**environ, "wsgi.input": io.BytesIO(body)}

        def carry_out() -> Answer:
            if action in _NEVER_CHANGE:
                key = (region, *params.items())
                if key not in self._answers:
                    self._answers[key] = self._pass_on(environ)
                return self._answers[key]
            own = getattr(self, f"_on_{action}", None)
            return own(environ, params) if own else self._pass_on(environ)

        try:
            answer = self.fault(call, carry_out) if self.fault else carry_out()
            if action.endswith("SecurityGroupIngress"):
                self.on_rules()
        except CutConnection:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        start_response(answer.status, [("Content-Type", answer.kind)])
        return [answer.body]

    def _pass_on(self, environ: Environ) -> Answer:
        said: dict[str, str] = {}

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            said["status"] = status
            said["kind"] = dict(headers).get("Content-Type", "text/xml")

        # moto's own store is not made for several threads.
        with self._lock:
            body = b"".join(self._moto(environ, start))
        return Answer(body, said["status"], said["kind"])

    # What moto does not have

    def _on_RunInstances(self, environ: Environ, params: Params) -> Answer:
        token = params.get("ClientToken", "")
        if token in self._by_token:
            return self._by_token[token]
        answer = self._pass_on(environ)
        if answer.status.startswith("200"):
            self._by_token[token] = answer
            for item in ElementTree.fromstring(answer.body).iterfind("{*}instancesSet/{*}item"):
                number, address = (
                    item.findtext("{*}instanceId"),
                    item.findtext("{*}privateIpAddress"),
                )
                assert number
                assert address
                self.on_run(number, address, params)
        return answer

    def _on_CreateImage(self, environ: Environ, params: Params) -> Answer:
        [of_disks] = [
            key.removesuffix(".ResourceType")
            for key, value in params.items()
            if key.endswith(".ResourceType") and value == "snapshot"
        ]
        rest = {key: value for key, value in params.items() if not key.startswith(of_disks)}
        answer = self._ask(environ, rest)
        number = ElementTree.fromstring(answer.body).findtext("{*}imageId") or ""
        described = self._ask(environ, {"Action": "DescribeImages", "ImageId.1": number})
        disk = ElementTree.fromstring(described.body).findtext(".//{*}snapshotId") or ""
        tags = {
            key.removeprefix(f"{of_disks}."): value
            for key, value in params.items()
            if key.startswith(f"{of_disks}.Tag.")
        }
        self._ask(environ, {"Action": "CreateTags", "ResourceId.1": disk, **tags})
        self.on_image(number, params["InstanceId"])
        return answer

    def _ask(self, environ: Environ, params: Params) -> Answer:
        """Ask moto something else than what was asked of us."""
        body = urlencode({"Version": "2016-11-15", **params}).encode()
        length = {"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
        return self._pass_on({**environ, **length})

    def _on_ImportKeyPair(self, environ: Environ, params: Params) -> Answer:
        self.public_keys[params["KeyName"]] = b64decode(params["PublicKeyMaterial"]).decode()
        return self._pass_on(environ)

    def _on_TerminateInstances(self, environ: Environ, params: Params) -> Answer:
        for each in _ids(params):
            self.on_terminate(each)
        return self._pass_on(environ)

    def _on_StopInstances(self, environ: Environ, params: Params) -> Answer:
        answer = self._pass_on(environ)
        for each in _ids(params) if answer.status.startswith("200") else ():
            self.on_stop(each)
        return answer

    def _on_StartInstances(self, environ: Environ, params: Params) -> Answer:
        answer = self._pass_on(environ)
        for each in _ids(params) if answer.status.startswith("200") else ():
            self.on_start(each)
        return answer

    def _on_ModifyInstanceAttribute(self, environ: Environ, params: Params) -> Answer:
        if (value := params.get("InstanceInitiatedShutdownBehavior.Value")) is None:
            return self._pass_on(environ)
        changed = {"Attribute": "instanceInitiatedShutdownBehavior", "Value": value}
        asked = {"Action": params["Action"], "InstanceId": params["InstanceId"], **changed}
        return self._ask(environ, asked)

    def _on_DescribeInstances(self, environ: Environ, params: Params) -> Answer:
        answer = self._pass_on(environ)
        return with_addresses(answer, self.addresses) if self.addresses else answer

    def _on_DescribeRegions(self, environ: Environ, params: Params) -> Answer:
        # An account has not enabled every region, and moto makes each one that is asked for.
        names = "".join(f"<item><regionName>{each}</regionName></item>" for each in REGIONS)
        return _xml("DescribeRegions", f"<regionInfo>{names}</regionInfo>")

    def _on_CreatePlacementGroup(self, environ: Environ, params: Params) -> Answer:
        name = params["GroupName"]
        if (_region(environ), name) in self._groups:
            return refusal("InvalidPlacementGroup.Duplicate", f"The group '{name}' exists")
        tags = {
            params[key]: params[key.replace(".Key", ".Value")]
            for key in params
            if re.fullmatch(r"TagSpecification\.1\.Tag\.\d+\.Key", key)
        }
        self._groups[_region(environ), name] = tags
        return _xml("CreatePlacementGroup", "<return>true</return>")

    def _on_DescribePlacementGroups(self, environ: Environ, params: Params) -> Answer:
        found = [
            f"<item><groupName>{name}</groupName><state>available</state><tagSet>"
            + "".join(f"<item><key>{k}</key><value>{v}</value></item>" for k, v in tags.items())
            + "</tagSet></item>"
            for (region, name), tags in self._groups.items()
            if region == _region(environ)
            and all(_fits(tags.get(tag), wanted) for tag, wanted in _tag_filters(params).items())
        ]
        body = f"<placementGroupSet>{''.join(found)}</placementGroupSet>"
        return _xml("DescribePlacementGroups", body)

    def _on_DeletePlacementGroup(self, environ: Environ, params: Params) -> Answer:
        if self._groups.pop((_region(environ), params["GroupName"]), None) is None:
            return refusal("InvalidPlacementGroup.Unknown", "The Placement Group is unknown.")
        return _xml("DeletePlacementGroup", "<return>true</return>")

    def _on_GetProducts(self, environ: Environ, params: Params) -> Answer:
        if "volumeApiName" in str(params.get("Filters")):
            products = [disk()]
        else:
            products = [product(name, price) for name, price in prices().items()]
        return Answer(
            json.dumps({"FormatVersion": "aws_v1", "PriceList": products}).encode(),
            kind="application/x-amz-json-1.1",
        )

    def _on_DescribeSpotPriceHistory(self, environ: Environ, params: Params) -> Answer:
        types = {value for name, value in params.items() if name.startswith("InstanceType.")}
        return _xml("DescribeSpotPriceHistory", spot_prices(_region(environ), types))

    def _on_GetParameter(self, environ: Environ, params: Params) -> Answer:
        name = params["Name"]
        if not name.startswith(("/aws/service/canonical/", "/aws/service/deeplearning/")):
            return self._pass_on(environ)
        parameter = {"Name": name, "Type": "String", "Value": IMAGE, "Version": 1}
        body = json.dumps({"Parameter": parameter}).encode()
        return Answer(body, kind="application/x-amz-json-1.1")


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:
        """Say nothing; what was asked is in `Account.calls`."""


def refusal(
    code: str, message: str, status: str = "400 Bad Request", json_spoken: bool = False
) -> Answer:
    """Return how AWS says no, in the language of EC2 or in that of its newer services."""
    if json_spoken:
        said = json.dumps({"__type": code, "message": message})
        return Answer(said.encode(), status, "application/x-amz-json-1.1")
    body = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        "<RequestID>r</RequestID></Response>"
    )
    return Answer(body.encode(), status)


def _region(environ: Environ) -> str:
    signed = re.search(_CREDENTIAL, environ.get("HTTP_AUTHORIZATION", ""))
    return signed[2] if signed else ""


def _ids(params: Params) -> list[str]:
    return [value for name, value in params.items() if name.startswith("InstanceId.")]


def _xml(action: str, body: str) -> Answer:
    text = f'<{action}Response xmlns="{_XML}"><requestId>r</requestId>{body}</{action}Response>'
    return Answer(text.encode())


def _params(body: bytes) -> Params:
    text = body.decode(errors="replace")
    return json.loads(text) if text.startswith("{") else dict(parse_qsl(text))


def _tag_filters(params: Params) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key, name in params.items():
        if re.fullmatch(r"Filter\.\d+\.Name", key) and name.startswith("tag:"):
            values = key.replace(".Name", ".Value.")
            found[name[4:]] = {value for each, value in params.items() if each.startswith(values)}
    return found


def _fits(value: str | None, wanted: set[str]) -> bool:
    return value is not None and any(fnmatch(value, pattern) for pattern in wanted)
