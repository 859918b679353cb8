"""Images that are streamed from parquet files: which, in what order, and how few at a time."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deva_lab.data import image_set
from deva_lab.data.images import check_images, load_images
from deva_lab.errors import UsageError
from deva_lab.vision import ImageTask, order

pyarrow = pytest.importorskip("pyarrow")
dataset = pytest.importorskip("pyarrow.dataset")
parquet = pytest.importorskip("pyarrow.parquet")

GROUP = 4  # images in a row group


def png(number: int, side: int) -> bytes:
    """An image that is grey all over, as grey as its number."""
    file = io.BytesIO()
    Image.fromarray(np.full((side, side + 9, 3), number, np.uint8)).save(file, "png")
    return file.getvalue()


def write(path: Path, numbers: range, *, side: int = 80, names: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [{"bytes": png(number, side), "path": None} for number in numbers]
    labels = [number % 7 for number in numbers]
    table = pyarrow.table({"image": entries, "label": labels})
    if names:
        label = {"names": [str(i) for i in range(names)]}
        noted = json.dumps({"info": {"features": {"label": label}}})
        table = table.replace_schema_metadata({"huggingface": noted})
    parquet.write_table(table, path, row_group_size=GROUP)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty-two images for training, in two files, and ten for validation."""
    write(tmp_path / "data" / "train-0-of-2.parquet", range(22))
    write(tmp_path / "data" / "train-1-of-2.parquet", range(22, 42))
    write(tmp_path / "data" / "validation-0-of-1.parquet", range(100, 110))
    return tmp_path


def test_images_and_labels_are_those_of_the_rows(folder: Path) -> None:
    check_images(str(folder))
    images = load_images(str(folder))
    assert (len(images.train), len(images.validation)) == (42, 10)
    assert (images.classes, images.side, images.padding) == (7, 224, 0)
    assert images.groups == (4, 4, 4, 4, 4, 2, 4, 4, 4, 4, 4)
    index = torch.tensor([41, 0, 21, 22, 7])
    assert images.train[index].shape == (5, 3, 256, 256)
    assert images.train[index][:, 0, 9, 9].tolist() == index.tolist()
    assert images.train_labels[index].tolist() == [i % 7 for i in index.tolist()]
    assert images.validation[torch.tensor([3])][0, 2, 0, 0] == 103


def test_an_epoch_has_every_image_once_and_moves_none_far() -> None:
    sizes = torch.randint(1, 9, (200,), generator=torch.Generator().manual_seed(1))
    count, mixed = int(sizes.sum()), 50
    orders = [
        image_set.neighbours_mixed(sizes, mixed, torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert orders[0].sort().values.tolist() == list(range(count))
    group = torch.arange(200).repeat_interleave(sizes)
    place = torch.empty(count, dtype=torch.long)
    place[orders[0]] = torch.arange(count)
    for places in place.split(sizes.tolist()):
        # eight rows at the most, each of them moved by up to fifty either way
        assert places.max() - places.min() < 8 + 2 * mixed
    nearest = (group[orders[0]][1:] == group[orders[0]][:-1]).double().mean()
    assert nearest < 0.2  # images of a group do not follow each other: of some twelve groups


def test_a_run_that_goes_on_sees_the_same_and_fetches_little(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deva_lab.vision.MIXED", 6)

    def task_of(seed: int) -> ImageTask:
        return ImageTask("vit", "vit-s16", load_images(str(folder)), seed=seed, batch=4)

    task = task_of(3)
    through = [task.batch(step) for step in range(21)]  # two epochs
    seen = torch.cat([labels for _, labels in through])
    assert seen[:42].bincount().tolist() == seen[42:].bincount().tolist() == [6] * 7
    again = task_of(3)
    images, labels = again.batch(13)
    assert torch.equal(images, through[13][0])
    assert torch.equal(labels, through[13][1])
    rows = order(42, seed=3, batch=4, step=13, groups=again.images.groups)
    group = torch.arange(11).repeat_interleave(torch.tensor(again.images.groups))
    assert len(group[rows].unique()) <= 4 < len(again.images.groups)
    other = task_of(4)
    assert not torch.equal(other.batch(13)[0], images)


def test_groups_are_read_when_needed_and_leave_memory_when_done_with(folder: Path) -> None:
    files = sorted(map(str, folder.rglob("train-*.parquet")))
    groups = image_set._groups(dataset.dataset(files, format="parquet"))
    store = image_set.Store(groups, "image", most=9)
    for place in range(0, 42, 3):
        index = torch.arange(place, place + 3)
        assert [label for _, label in store.take(index)] == [i % 7 for i in index.tolist()]
        assert store.read.cache_info().currsize <= 3  # nine rows are two groups and a part
        assert store.read.cache_info().misses == 1 + int(
            torch.searchsorted(store.ends, place + 2, right=True)
        )
    assert store.read.cache_info().misses == len(groups) == 11


def test_validation_takes_groups_of_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deva_lab.data.image_set.VALIDATED", 5)
    images = load_images(str(folder))
    assert images.validation[torch.arange(6)][:, 0, 0, 0].tolist() == [100, 101, 102, 103, 108, 109]


def test_classes_are_those_that_are_noted_down(tmp_path: Path) -> None:
    write(tmp_path / "train" / "0.parquet", range(8), names=1000)
    write(tmp_path / "test" / "0.parquet", range(4))
    assert load_images(str(tmp_path)).classes == 1000


def test_small_images_are_held_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", range(8), side=32)
    write(tmp_path / "test-0.parquet", range(90, 94), side=32)
    images = load_images(str(tmp_path))
    assert isinstance(images.train, torch.Tensor)
    assert images.train[:, 1, 5, 5].tolist() == list(range(8))
    assert images.validation_labels.tolist() == [6, 0, 1, 2]
    assert (images.side, images.padding, images.groups) == (32, 4, ())


def test_a_large_set_of_the_hub_is_streamed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nothing").mkdir()
    monkeypatch.setattr("deva_lab.data.images.ROOTS", (f"{folder}/nothing", str(folder)))
    images = load_images("imagenet-1k")
    assert len(images.train) == 42


@pytest.mark.parametrize(
    ("column", "files", "message"),
    [
        ("image", ("train",), "has no parquet files for both sides"),
        ("picture", ("train", "test"), "must have a column image or img .* got picture, label"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, column: str, files: tuple[str, ...], message: str
) -> None:
    for name in files:
        path = tmp_path / f"{name}-0.parquet"
        write(path, range(5))
        table = parquet.read_table(path)
        parquet.write_table(table.rename_columns([column, "label"]), path)
    with pytest.raises(UsageError, match=message):
        load_images(str(tmp_path))


def test_groups_change_nothing_where_there_are_none() -> None:
    plain = order(50, seed=1, batch=8, step=3)
    assert torch.equal(plain, order(50, seed=1, batch=8, step=3, groups=()))
    assert not torch.equal(plain, order(50, seed=1, batch=8, step=3, groups=(25, 25)))
