"""Images by name and by path: read back exactly, cut in two without a leak, errors said at once."""

import io
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from deva_lab.data.image_set import Images, Lazy, decode
from deva_lab.data.images import SHAPES, check_images, list_images, load_images
from deva_lab.errors import UsageError

needs_data = pytest.mark.skipif("DEVA_DATA" not in os.environ, reason="DEVA_DATA is not set")


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """An image file of pixels (h, w, 3) or (h, w)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def write(root: Path, name: str, pixels: np.ndarray) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(pixels))


def planes(pixels: np.ndarray) -> Tensor:
    """(h, w, 3) as (3, h, w)."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


# --- Digits --------------------------------------------------------------------------------------


def test_digits_are_cut_in_two_class_by_class() -> None:
    images = load_images("digits")
    assert images.train.dtype == torch.uint8
    assert images.train.shape[1:] == (1, 8, 8)
    assert len(images.train) + len(images.validation) == 1797
    assert (images.classes, images.side, images.channels) == (10, 8, 1)
    held = images.validation_labels.bincount(minlength=10)
    kept = images.train_labels.bincount(minlength=10)
    assert ((held / (held + kept) - 0.2).abs() < 0.01).all()
    assert torch.equal(images.train, load_images("digits").train)


def test_digits_keep_their_labels() -> None:
    from sklearn.datasets import load_digits

    data = load_digits()
    pairs = zip(data.images, data.target, strict=True)
    known = {image.astype(np.uint8).tobytes(): label for image, label in pairs}
    images = load_images("digits")
    for pixels, labels in (
        (images.train, images.train_labels),
        (images.validation, images.validation_labels),
    ):
        for image, label in zip(pixels, labels, strict=True):
            assert known.pop(image.numpy().tobytes()) == label  # each is there once
    assert not known


def test_mean_and_deviation_are_those_of_the_training_images() -> None:
    train = torch.from_numpy(noise(300, 3, 4, 4))
    train[:, 2] = 7  # a constant channel
    rest = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    labels = torch.zeros(300, dtype=torch.long)
    images = Images(train, labels, rest, labels[:2], classes=1, side=4)
    channels = train.float().transpose(0, 1).flatten(1)
    torch.testing.assert_close(images.mean, channels.mean(1))
    torch.testing.assert_close(images.std[:2], channels.std(1, correction=0)[:2])
    assert images.std[2] > 0


def test_folders_train_and_val(tmp_path: Path) -> None:
    pictures = {
        f"{side}/{name}/{i}.png": noise(6, 6, 3) + i
        for side in ("train", "val")
        for name in ("cat", "dog")
        for i in range(2)
    }
    for name, pixels in pictures.items():
        write(tmp_path, name, pixels)
    (tmp_path / "train/notes.txt").write_text("not an image")
    images = load_images(str(tmp_path))
    names = sorted(name for name in pictures if name.startswith("train"))
    assert torch.equal(images.train, torch.stack([planes(pictures[name]) for name in names]))
    assert images.train_labels.tolist() == images.validation_labels.tolist() == [0, 0, 1, 1]
    assert (images.classes, images.side, images.channels) == (2, 6, 3)


def test_folder_without_sides_is_cut_by_a_hash(tmp_path: Path) -> None:
    paths = [f"class{i % 3}/{i}.png" for i in range(600)]
    listing = list_images(paths)
    train, validation = ({path for path, _ in side} for side in listing[1:])
    assert train | validation == set(paths)
    assert not train & validation
    assert 30 < len(validation) < 90  # 60 expected, of deviation 7
    assert all(
        path.startswith(f"class{label}/") for path, label in listing.train + listing.validation
    )
    more = list_images([*paths, "class0/new.png"])  # a new image moves no other one
    assert validation <= {path for path, _ in more.validation}


def test_listing_of_tiny_imagenet_takes_classes_from_its_annotations() -> None:
    paths = ["train/n2/images/a.JPEG", "train/n1/images/b.JPEG", "val/images/v.JPEG"]
    listing = list_images(paths, "v.JPEG\tn2\t0\t0\t9\t9\n")
    assert listing.classes == ["n1", "n2"]
    assert listing.validation == [("val/images/v.JPEG", 1)]
    assert [label for _, label in listing.train] == [0, 1]


def test_listing_errors() -> None:
    with pytest.raises(UsageError, match="the class fox, of which training has none"):
        list_images(["train/cat/1.png", "val/fox/1.png"])
    with pytest.raises(UsageError, match="no image for train"):
        list_images(["1.png"])
    with pytest.raises(UsageError, match="no image for (train|validation)"):
        list_images(["cat/1.png"])


def test_grey_images_have_one_channel_unless_one_is_in_colour(tmp_path: Path) -> None:
    for side in ("train", "val"):
        write(tmp_path, f"{side}/a/1.png", noise(5, 5))
        write(tmp_path, f"{side}/a/2.png", noise(5, 5) // 2)
    assert load_images(str(tmp_path)).channels == 1
    write(tmp_path, "train/a/3.png", noise(5, 5, 3))
    images = load_images(str(tmp_path))
    assert images.channels == 3
    assert torch.equal(images.train[0], torch.from_numpy(noise(5, 5)).expand(3, 5, 5))


def test_large_images_are_decoded_when_asked_for(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path, f"train/c{i % 2}/{i}.png", np.full((300, 280, 3), 10 * i, np.uint8))
        write(tmp_path, f"val/c{i % 2}/{i}.png", np.full((260, 400, 3), 20 * i, np.uint8))
    images = load_images(str(tmp_path))
    assert isinstance(images.train, Lazy)
    assert (images.side, images.padding, len(images.train)) == (224, 0, 4)
    picked = images.train[torch.tensor([3, 0, 3])]  # in order of class: 0, 2, 1, 3
    assert picked.shape == (3, 3, 256, 256)
    assert picked[:, 0, 0, 0].tolist() == [30, 0, 30]
    assert images.train_labels.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(images.mean, torch.full((3,), 15.0))


def test_decoding_scales_the_shorter_side_and_keeps_the_middle() -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 200
    for kind in ("PNG", "JPEG"):
        pixels = decode(("wide", encoded(wide, kind)), 8, "RGB")
        assert (pixels.float() - 200).abs().max() < 5  # JPEG rounds
    tall = np.concatenate([np.zeros((96, 64, 3), np.uint8), np.full((96, 64, 3), 250, np.uint8)])
    pixels = decode(("tall", encoded(tall)), 32, "RGB")
    assert pixels.shape == (3, 32, 32)
    assert not pixels[:, :15].any()
    assert (pixels[:, 17:] == 250).all()


def test_broken_image_is_named(tmp_path: Path) -> None:
    for side in ("train", "val"):
        write(tmp_path, f"{side}/a/1.png", noise(40, 40, 3))
    path = tmp_path / "val/a/1.png"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UsageError, match="val/a/1.png is no image that can be read"):
        load_images(str(tmp_path))
    path.write_bytes(b"text")
    with pytest.raises(UsageError, match="val/a/1.png is no image that can be read"):
        load_images(str(tmp_path))


# --- Archives ------------------------------------------------------------------------------------


def archive(path: Path, side: int) -> None:
    with tarfile.open(path, "w:xz") as tar:
        for name in ("train/n1/images/a", "train/n2/images/b", "val/images/v"):
            data = encoded(noise(side, side, 3) + len(name) % 7)
            info = tarfile.TarInfo(f"tiny/{name}.png")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        text = b"v.png\tn2\t0\t0\t1\t1\n"
        info = tarfile.TarInfo("tiny/val/val_annotations.txt")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))


def test_archive_is_decoded_once(tmp_path: Path) -> None:
    path, cache, said = tmp_path / "tiny.tar.xz", tmp_path / "cache", []
    archive(path, 16)
    first = load_images(str(path), cache=cache, report=said.append)
    again = load_images(str(path), cache=cache, report=said.append)
    assert len(said) == 1
    assert torch.equal(first.train[0], planes(noise(16, 16, 3) + len("train/n1/images/a") % 7))
    for images in (first, again):
        assert images.train_labels.tolist() == [0, 1]
        assert images.validation_labels.tolist() == [1]
        assert (images.classes, images.side) == (2, 16)
    assert torch.equal(first.train, again.train)
    archive(path, 17)  # another content is another entry
    assert load_images(str(path), cache=cache, report=said.append).side == 17
    assert len(said) == 2


def test_archive_errors(tmp_path: Path) -> None:
    path = tmp_path / "large.tar.xz"
    archive(path, 65)
    with pytest.raises(UsageError, match="unpack it and give the folder"):
        load_images(str(path), cache=tmp_path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UsageError, match="is no tar archive that can be read"):
        load_images(str(path), cache=tmp_path)
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(UsageError, match="is no folder of images and no archive"):
        check_images(str(tmp_path / "x.zip"))


# --- The hub -------------------------------------------------------------------------------------


def test_a_small_set_of_the_hub_is_fetched_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `datasets` writes it: tables with the names of the classes."""
    datasets = pytest.importorskip("datasets")
    pictures = [noise(32, 32, 3) + i for i in range(7)]
    features = {"img": datasets.Image(), "label": datasets.ClassLabel(names=[*"abcde"])}
    for name, some in {"train": pictures, "test": pictures[:2]}.items():
        entries = [{"bytes": encoded(picture), "path": None} for picture in some]
        rows = {"img": entries, "label": [i % 5 for i in range(len(some))]}
        table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        table.to_parquet(tmp_path / f"{name}-00000-of-00001.parquet")
    asked: list[str] = []

    def download(repository: str, **_: object) -> str:
        asked.append(repository)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    images = load_images("cifar10")
    assert asked == ["uoft-cs/cifar10"]
    assert torch.equal(images.train, torch.stack([planes(p) for p in pictures]))
    assert images.train_labels.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert len(images.validation) == 2
    assert (images.classes, images.side, images.padding) == (5, 32, 4)


def test_hub_without_a_network_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(UsageError, match="uoft-cs/cifar10 cannot be fetched .*no network"):
        load_images("cifar10")


# --- Errors --------------------------------------------------------------------------------------


def test_unknown_name_and_missing_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown images 'cifar', did you mean 'cifar10'"):
        check_images("cifar")
    with pytest.raises(UsageError, match="there is no folder or file of images at /no/such"):
        check_images("/no/such")
    with pytest.raises(UsageError, match="there is no image in the folder"):
        check_images(str(tmp_path))


def test_a_missing_extra_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"datasets is not installed: .*\[hub\]"):
        check_images("cifar10")


def test_data_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEVA_DATA", raising=False)
    with pytest.raises(UsageError, match="in DEVA_DATA, an environment variable that is not set"):
        check_images("cifar10-small")
    monkeypatch.setenv("DEVA_DATA", str(tmp_path))
    with pytest.raises(UsageError, match="tiny-imagenet needs .*tar.xz in DEVA_DATA"):
        check_images("tiny-imagenet")
    (tmp_path / "cifar10-small").mkdir()
    with pytest.raises(UsageError, match="needs cifar10-small/train10000.webp in DEVA_DATA"):
        check_images("cifar10-small")


def test_tiles_are_cut_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVA_DATA", str(tmp_path))
    folder = tmp_path / "cifar10-small"
    folder.mkdir()
    sheet = noise(64, 96, 3)
    for stem in ("train10000", "test2000"):
        Image.fromarray(sheet).save(folder / f"{stem}.webp", lossless=True)
        (folder / f"{stem}.labels.u8").write_bytes(bytes([3, 1, 4, 1, 5, 9]))
    images = load_images("cifar10-small")
    assert images.train.shape == (6, 3, 32, 32)
    assert torch.equal(images.train[4], planes(sheet)[:, 32:, 32:64])
    assert images.train_labels.tolist() == [3, 1, 4, 1, 5, 9]
    (folder / "test2000.labels.u8").write_bytes(bytes(5))
    with pytest.raises(UsageError, match="has 6 tiles but 5 labels"):
        load_images("cifar10-small")


# --- Real data -----------------------------------------------------------------------------------


@needs_data
def test_real_cifar() -> None:
    images = load_images("cifar10-small")
    assert images.train.shape == (10_000, 3, 32, 32)
    assert images.validation_labels.bincount().tolist() == [200] * 10
    # the means that the field uses for CIFAR-10 are 125.3, 123.0 and 113.9
    assert (images.mean - torch.tensor([125.3, 123.0, 113.9])).abs().max() < 1.5
    assert SHAPES["cifar10-small"].side == images.side


@needs_data
@pytest.mark.slow
def test_real_tiny_imagenet(tmp_path: Path) -> None:
    images = load_images("tiny-imagenet", cache=tmp_path)
    assert images.train.shape == (20_000, 3, 32, 32)
    assert images.train_labels.bincount().tolist() == [500] * 40
    assert images.validation_labels.bincount().tolist() == [50] * 40
    assert SHAPES["tiny-imagenet"].side == images.side
