"""``%sky gc``: ending and removing what clusters left behind, and what nobody uses any more."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from jupyter_sky.cluster.inventory import cloud_resources, orphans
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.ssh.connection.connection import lines
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup import prune as ssh


def collect(identity: str | None = None) -> None:
    """End and remove what dead clusters left behind, and print what that was.

    Parameters
    ----------
    identity
        A cluster of somebody else's that is to be ended as well, by its id.
    """
    left: list[orphans.Orphan | cloud_resources.RentedCluster] = [*orphans.find()]
    rented, trouble = cloud_resources.find()
    left += [each for each in rented if each.is_orphaned or each.holding.id == identity]
    for each in left:
        text = str(each)
        try:
            each.remove()
            print(f"removed {text}")
        except SkyError as error:
            trouble.append(f"{error}")
    if not left and not trouble:
        print("nothing was left behind")
    for sentence in [*trouble, *cloud_resources.upkeep()]:
        print(sentence)
    for each in rented:
        if not each.is_known and each not in left:
            print(
                f"left alone: {each}, started by {each.holding.by} with another registry; "
                f"`%sky gc {each.holding.id}` ends it"
            )


def prune(targets: Sequence[Target], unused_for: float | None) -> None:
    """Remove environments that nobody uses from hosts, and print what that was."""

    def at(target: Target) -> str:
        try:
            pruned = ssh.prune(lines.get(target), unused_for or ssh.UNUSED_FOR)
        except SkyError as error:
            return f"cannot be cleaned up: {error}"
        finally:
            lines.get(target).close_if_unused()
        return f"removed {pruned}" if pruned.names else "every environment there is used"

    with ThreadPoolExecutor(max(1, len(targets))) as threads:
        for target, said in zip(targets, threads.map(at, targets), strict=True):
            print(f"{target}: {said}")
