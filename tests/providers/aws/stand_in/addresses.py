"""Public addresses of instances that lead somewhere: moto's lead nowhere, and never change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from xml.etree import ElementTree

from tests.providers.aws.stand_in.answer import Answer

_XML = "http://ec2.amazonaws.com/doc/2016-11-15/"


def with_addresses(answer: Answer, addresses: Mapping[str, str]) -> Answer:
    """Return an answer to ``DescribeInstances`` with these public addresses, by id; others none."""
    tree = ElementTree.fromstring(answer.body)
    for item in tree.iterfind(".//{*}instancesSet/{*}item"):
        for old in item.findall("{*}ipAddress"):
            item.remove(old)
        if address := addresses.get(item.findtext("{*}instanceId") or ""):
            ElementTree.SubElement(item, f"{{{_XML}}}ipAddress").text = address
    ElementTree.register_namespace("", _XML)
    return replace(answer, body=ElementTree.tostring(tree))
