"""Checkpoints of one process: without a process group, on the disk and in a bucket."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.core import url_to_fs

import jupyter_sky as sky
from jupyter_sky.transport import present_run
from jupyter_sky.transport.volumes.asking import note_places
from tests.installed import on_first_use
from tests.waiting import until

torch = on_first_use("torch")


def trained(seed: int = 0) -> tuple[Any, Any, Any]:
    """Return a model with its optimizer and its scheduler after a few steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


def same(first: Any, second: Any) -> bool:
    own, other = first.state_dict(), second.state_dict()
    return list(own) == list(other) and all(map(torch.equal, own.values(), other.values()))


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    # What fsspec keeps in memory stands for a bucket: it has objects, and no folders.
    name = request.node.name
    return str(tmp_path / "run") if request.param == "disk" else f"memory://{abs(hash(name))}/run"


@pytest.mark.parametrize("wait", [True, False])
def test_all_that_was_saved_is_restored(place: str, wait: bool) -> None:
    model, optimizer, scheduler = trained()
    before = copy.deepcopy(model)
    saving = sky.save(
        place,
        wait=wait,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        step=3,
        history=[{"loss": torch.ones(2)}],
    )
    with torch.no_grad():
        model[0].weight.zero_()  # not what was saved, also while it is written
    saving.wait()
    assert saving.done and "saved in" in repr(saving)
    other, its_optimizer, its_scheduler = trained(seed=1)
    others = sky.load(place, model=other, optimizer=its_optimizer, scheduler=its_scheduler)
    assert same(other, before)
    assert its_optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)
    assert its_scheduler.last_epoch == 3
    state = its_optimizer.state[other[0].weight]
    assert torch.equal(state["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
    assert others["step"] == 3 and torch.equal(others["history"][0]["loss"], torch.ones(2))


def parts_of(seed: int) -> tuple[Any, Any, Any]:
    """Return two models with a single optimizer, after a step."""
    torch.manual_seed(seed)
    encoder, decoder = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
    both = torch.optim.Adam([*decoder.parameters(), *encoder.parameters()])
    decoder(encoder(torch.randn(6, 4))).sum().backward()
    both.step()
    return encoder, decoder, both


def test_an_optimizer_of_several_models_is_restored(tmp_path: Path) -> None:
    encoder, decoder, both = parts_of(seed=0)
    sky.save(tmp_path, encoder=encoder, both=both, decoder=decoder)
    its_encoder, its_decoder, its_both = parts_of(seed=1)
    sky.load(tmp_path, both=its_both, decoder=its_decoder, encoder=its_encoder)
    for model, its in ((encoder, its_encoder), (decoder, its_decoder)):
        assert same(its, model)
        state, its_state = both.state[model.weight], its_both.state[its.weight]
        assert torch.equal(its_state["exp_avg"], state["exp_avg"])
    some = "some of what it optimizes is in no model that is given"
    with pytest.raises(sky.UsageError, match=f"both is an optimizer, and {some}"):
        sky.save(tmp_path, encoder=encoder, both=both)


def test_the_whole_model_is_that_of_an_optimizer_also_if_a_part_is_named_before(
    tmp_path: Path,
) -> None:
    model, optimizer, _ = trained()
    sky.save(tmp_path, first=model[0], model=model, optimizer=optimizer)
    other, its_optimizer, _ = trained(seed=1)
    sky.load(tmp_path, optimizer=its_optimizer, model=other)
    assert same(other, model)
    state = its_optimizer.state[other[0].weight]
    assert torch.equal(state["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])


def test_only_what_is_named_is_restored(tmp_path: Path) -> None:
    model, optimizer, _ = trained()
    sky.save(tmp_path, model=model, optimizer=optimizer, step=3)
    other, _, _ = trained(seed=1)
    assert sky.load(tmp_path, model=other) == {"step": 3}
    assert same(other, model)
    assert sky.load(tmp_path) == {"step": 3}


def test_a_new_save_takes_the_place_of_the_former_one(place: str) -> None:
    model, _, _ = trained()
    sky.save(place, model=model, step=1)
    sky.save(place, wait=False, model=model, step=2)
    sky.save(place, model=model, step=3)  # after the one that is on its way
    assert sky.load(place)["step"] == 3
    if "://" not in place:
        save = json.loads(Path(place, "checkpoint.json").read_text())["save"]
        assert {path.name for path in Path(place).iterdir()} == {"checkpoint.json", save}


def test_a_save_can_be_sent_once_it_is_over(tmp_path: Path) -> None:
    saving = sky.save(str(tmp_path / "run"), wait=False, step=3)
    sent = pickle.loads(pickle.dumps(saving))
    sent.wait()
    assert saving.done and sent.done and (sent.path, repr(sent)) == (saving.path, repr(saving))


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b'{"volumes": [', "the volume .*/data is gone"), (b"{}\n", "'volumes'")],
    ids=["killed as it answers", "of another version"],
)
def test_a_save_whose_volume_gives_no_answer_has_failed(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    place, volume = tmp_path / "keeper", tmp_path / "data"
    note = {"url": "s3://data", "path": str(volume), "read_only": False, "socket": str(place)}
    volume.mkdir()
    note_places(volume)[0].write_text(json.dumps(note))

    def keep() -> None:
        with keeper.accept()[0] as link:
            assert b"write_back" in link.recv(4096)
            link.sendall(answer)

    with socket.socket(socket.AF_UNIX) as keeper, ThreadPoolExecutor() as threads:
        keeper.bind(str(place))
        keeper.listen()
        answered = threads.submit(keep)
        saving = sky.save(volume / "run", wait=False, step=1)
        until(lambda: saving.done)
        answered.result()
    with pytest.raises(sky.SkyError, match=f"was not saved: {said}"):
        saving.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to other users")
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "dead"])
def test_the_volume_of_another_user_around_it_is_nothing_to_a_save(
    tmp_path: Path, is_kept: bool
) -> None:
    place = tmp_path / "keeper"
    note = {"url": "s3://data", "path": str(tmp_path), "read_only": False, "socket": str(place)}
    [_, inside] = note_places(tmp_path)
    inside.write_text(json.dumps(note))
    os.chown(inside, 65534, -1)
    with socket.socket(socket.AF_UNIX) as keeper:
        if is_kept:
            keeper.bind(str(place))  # who connects is refused
            os.chown(place, 65534, -1)
        sky.save(tmp_path / "run", step=1)
    assert sky.load(tmp_path / "run") == {"step": 1}


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no save be put in force, since the disk is full by then."""

    def replace(path: Path, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        yield


def test_folders_of_the_users_are_not_taken_for_saves(place: str) -> None:
    files, root = url_to_fs(place)
    data = f"{root}/202611280312/data.csv"  # a date and a time
    files.makedirs(data.rpartition("/")[0], exist_ok=True)
    files.pipe_file(data, b"1,2")
    for step in (1, 2):
        sky.save(place, step=step)
    assert files.cat_file(data) == b"1,2" and sky.load(place) == {"step": 2}


@pytest.mark.parametrize(("ranks", "other"), [((), "another run"), ((0, 1), "another rank")])
def test_of_two_that_save_in_the_same_folder_one_is_told_and_one_is_there(
    place: str, monkeypatch: pytest.MonkeyPatch, ranks: tuple[int, ...], other: str
) -> None:
    monkeypatch.setattr(present_run, "ranks", lambda: ranks)

    class Shared(torch.nn.Linear):
        """Another run saves in the same folder while this is written."""

        def get_extra_state(self) -> Any:
            return self

        def __reduce__(self) -> Any:
            sky.save(place, name="the other")
            return str, ("state",)

    sky.save(place, name="former")
    with pytest.raises(sky.SkyError, match=f"{other} has saved in the same folder meanwhile"):
        sky.save(place, model=Shared(2, 2), name="this")
    assert sky.load(place) == {"name": "the other"}
    sky.save(place, name="this")
    assert sky.load(place) == {"name": "this"}


@pytest.mark.parametrize("wait", [True, False])
def test_a_save_that_fails_leaves_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    model, _, _ = trained()
    place = tmp_path / "run"
    sky.save(place, model=model, step=1)
    with full_disk(monkeypatch), pytest.raises(sky.SkyError, match="run was not saved: .*No space"):
        sky.save(place, wait=wait, model=model, step=2).wait()
    assert sky.load(place)["step"] == 1
    assert len([path for path in place.iterdir() if path.is_dir()]) == 1


def test_a_failed_save_that_nobody_waited_for_is_told_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, _ = trained()
    place = tmp_path / "run"
    with full_disk(monkeypatch):
        saving = sky.save(place, wait=False, model=model, step=1)
        until(lambda: saving.done)
    assert "not saved" in repr(saving)
    with pytest.warns(UserWarning, match="was not saved"):
        sky.save(place, model=model, step=2)
    assert sky.load(place)["step"] == 2


def test_an_interrupt_is_one_and_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    class Interrupting(torch.nn.Linear):
        """Is interrupted while torch writes it."""

        def get_extra_state(self) -> Any:
            return self

        def set_extra_state(self, state: Any) -> None:
            """There is none."""

        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    model, _, _ = trained()
    sky.save(tmp_path, model=model, step=1)
    with pytest.raises(KeyboardInterrupt):
        sky.save(tmp_path, model=Interrupting(2, 2), step=2)
    assert sky.load(tmp_path)["step"] == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    model, optimizer, _ = trained()
    with pytest.raises(sky.UsageError, match=r"there is no checkpoint at .*/none\.$"):
        sky.load(tmp_path / "none", model=model)
    (tmp_path / "file").write_text("")
    with pytest.raises(sky.UsageError, match="nothing can be saved at"):
        sky.save(tmp_path / "file" / "run", model=model)
    with pytest.raises(sky.UsageError, match="its model is not given"):
        sky.save(tmp_path / "run", optimizer=optimizer)
    with pytest.raises(sky.UsageError, match="lines cannot be saved"):
        sky.save(tmp_path / "run", lines=(line for line in "ab"))

    class Picky(torch.optim.SGD):
        """Does not make the step that torch has an optimizer make to learn of its state."""

        def step(self, closure: Any = None) -> Any:
            raise ValueError("without a loss")

    new = torch.nn.Linear(2, 2)
    first = Picky(new.parameters(), lr=0.5)
    with pytest.raises(sky.SkyError, match=r"state of first \(Picky\) before its first step: "):
        sky.save(tmp_path / "run", model=new, first=first)
    assert first.param_groups[0]["lr"] == 0.5
    assert not (tmp_path / "run").exists()
    sky.save(tmp_path / "run", model=model, step=1)
    with pytest.raises(sky.UsageError, match="has no net: it has model, step"):
        sky.load(tmp_path / "run", net=model)
    with pytest.raises(sky.UsageError, match="step cannot be restored in place"):
        sky.load(tmp_path / "run", step=1)
    with pytest.raises(sky.SkyError, match=r"was not loaded: .*0\.weight"):
        sky.load(tmp_path / "run", model=torch.nn.Sequential(torch.nn.Linear(3, 3)))
    with pytest.raises(sky.UsageError, match="Install s3fs to access S3 on every node"):
        sky.save("s3://bucket/run", model=model)
