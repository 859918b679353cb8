"""Classification of images: batches that depend on the seed alone, and training that learns."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from deva_lab import vision
from deva_lab.data.image_set import Images
from deva_lab.data.images import load_images
from deva_lab.errors import UsageError
from deva_lab.models.images import FAMILIES
from deva_lab.vision import (
    ImageTask,
    centre_views,
    check_image_task,
    normalised,
    order,
    random_views,
)
from deva_optim import DeVA


def numbered(count: int = 23, *, side: int = 6, flip: bool = True) -> Images:
    """Images that consist of their own number, which is also their label."""
    number = torch.arange(count)
    pixels = (number + 1).to(torch.uint8).view(-1, 1, 1, 1).expand(count, 2, side, side)
    some = (pixels, number)
    return Images(*some, *some, classes=count, side=side, padding=2, flip=flip)


def task_on(images: Images, *, seed: int = 0, batch: int) -> ImageTask:
    return ImageTask("mlp", "tiny", images, seed=seed, batch=batch)


def digits(family: str, size: str, *, seed: int = 0, batch: int) -> ImageTask:
    return ImageTask(family, size, load_images("digits"), seed=seed, batch=batch)


def pixels_of(task: ImageTask, views: Tensor) -> Tensor:
    """The pixels that were normalised to these views."""
    mean, std = (x.view(-1, 1, 1) for x in (task.images.mean, task.images.std))
    return (views * std + mean).round()


# --- Order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7, 10, 23, 60])
def test_every_image_is_seen_once_an_epoch(batch: int) -> None:
    steps = -(-3 * 23 // batch)
    seen = torch.cat([order(23, seed=5, batch=batch, step=step) for step in range(steps)])
    epochs = [seen[23 * e : 23 * (e + 1)].tolist() for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(23))
    assert all(a != b for a, b in itertools.combinations(epochs, 2))


def test_order_depends_on_the_seed_and_on_nothing_else() -> None:
    first = [order(50, seed=1, batch=8, step=step) for step in range(20)]
    torch.manual_seed(99)
    for step in (13, 2, 19, 0):  # a resumed run begins anywhere
        assert torch.equal(order(50, seed=1, batch=8, step=step), first[step])
    assert not torch.equal(order(50, seed=2, batch=8, step=0), first[0])
    stream = torch.cat(first)
    assert torch.equal(order(50, seed=1, batch=160, step=0), stream)  # of any size of batch


def test_batch_is_a_function_of_seed_and_step() -> None:
    one, same, other = (digits("mlp", "tiny", seed=seed, batch=16) for seed in (3, 3, 4))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    images, labels = one.batch(40)
    assert torch.equal(state, torch.get_rng_state())  # the global generator is left alone
    assert torch.equal(images, same.batch(40)[0])
    assert torch.equal(labels, same.batch(40)[1])
    assert not torch.equal(images, other.batch(40)[0])
    assert (images.dtype, images.shape) == (torch.float32, (16, 1, 8, 8))
    assert (labels.dtype, labels.shape) == (torch.int64, (16,))
    assert (one.unit, one.units) == ("images", 16)


def test_model_is_a_function_of_the_seed() -> None:
    task = task_on(numbered(), seed=3, batch=4)
    state = torch.get_rng_state()
    a, b = task.model(), task.model()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    other = task_on(numbered(), seed=4, batch=4).model()
    assert not torch.equal(next(a.parameters()), next(other.parameters()))


# --- Crops and flips -----------------------------------------------------------------------------


def test_views_never_mix_images() -> None:
    task = task_on(numbered(), batch=23)
    images, labels = task.batch(2)
    for view, label in zip(pixels_of(task, images), labels, strict=True):
        assert set(view.flatten().tolist()) - {0} == {int(label) + 1}


@pytest.mark.parametrize(("padding", "side", "flip"), [(4, 9, True), (1, 9, False), (0, 5, True)])
def test_random_views_equal_a_loop(padding: int, side: int, flip: bool) -> None:
    pixels = torch.randint(1, 256, (40, 3, 9, 9), dtype=torch.uint8)
    views = random_views(
        pixels, side=side, padding=padding, flip=flip, generator=torch.Generator().manual_seed(7)
    )
    again = torch.Generator().manual_seed(7)
    places = 9 + 2 * padding - side + 1
    top = torch.randint(places, (40,), generator=again).tolist()
    left = torch.randint(places, (40,), generator=again).tolist()
    mirrored = torch.randint(2, (40,), generator=again).tolist() if flip else [0] * 40
    expected = torch.zeros_like(views)
    for n, i, j in itertools.product(range(40), range(side), range(side)):
        y, x = i + top[n] - padding, (side - 1 - j if mirrored[n] else j) + left[n] - padding
        if 0 <= y < 9 and 0 <= x < 9:
            expected[n, :, i, j] = pixels[n, :, y, x]
    assert views.dtype == torch.uint8
    assert torch.equal(views, expected)
    assert len(set(top)) == len(set(left)) == places  # every place is drawn
    assert 8 < sum(mirrored) < 32 or not flip  # about half


def test_digits_are_shifted_by_one_and_not_mirrored() -> None:
    images = load_images("digits")
    task = task_on(images, batch=64)
    views, _ = task.batch(3)
    index = order(len(images.train), seed=0, batch=64, step=3)
    padded = nn.functional.pad(images.train[index], (1, 1, 1, 1)).float()
    for view, image in zip(pixels_of(task, views), padded, strict=True):
        shifts = [image[:, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
        assert any(torch.equal(view, shift) for shift in shifts)


def test_centre_views_and_normalised() -> None:
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(centre_views(pixels, 4), pixels[:, :, 2:6, 2:6])
    assert torch.equal(centre_views(pixels, 8), pixels)
    images = numbered()
    images.mean, images.std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    scaled = normalised(pixels, images)
    assert scaled.dtype == torch.float32
    assert torch.equal(scaled[1, 2], (pixels[1, 2].float() - 3) / 6)


# --- Loss and validation -------------------------------------------------------------------------


def test_validation_in_chunks_is_that_of_all_images_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = digits("resnet", "tiny", batch=32)
    model = task.model()
    task.loss(model, task.batch(0))  # moves the running statistics
    images = task.images
    with torch.no_grad():
        logits = model.eval()(normalised(images.validation, images))
    model.train()
    monkeypatch.setattr(vision, "CHUNK", 100)
    found = task.validate(model)
    expected = cross_entropy(logits, images.validation_labels).item()
    # Float32 through some ten layers of sums of at most 300 terms, for batches of another size;
    # errors of either sign make √(10 · 300) of 2⁻²⁴, and the margin is 8.
    rounding = 8 * (10 * 300) ** 0.5 * 2**-24
    assert found["loss"] == pytest.approx(expected, rel=rounding)
    correct = (logits.argmax(1) == images.validation_labels).double().mean()
    assert found["accuracy"] == pytest.approx(correct.item())


def test_validation_leaves_the_model_as_it_was() -> None:
    task = digits("resnet", "tiny", batch=32)
    model = task.model()
    model.get_submodule("norm").eval()  # as someone who freezes a norm does
    modes = [module.training for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert task.validate(model) == task.validate(model)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters())


def test_validation_of_many_images_takes_some_of_all_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vision, "VALIDATION_IMAGES", 4)
    task = task_on(numbered(20), batch=8)
    seen: list[Tensor] = []
    model = task.model()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    task.validate(model)
    assert pixels_of(task, seen[0])[:, 0, 0, 0].tolist() == [1, 6, 11, 16]


def test_bfloat16_model() -> None:
    task = digits("vit", "tiny", batch=8)
    model = task.model().bfloat16()
    loss = task.loss(model, task.batch(0))
    assert loss.dtype == torch.float32
    loss.backward()
    assert 0 <= task.validate(model)["accuracy"] <= 1


# --- Training ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "size", "lr", "steps"),
    [
        ("mlp", "tiny", 8e-3, 60),
        ("vit", "tiny", 2e-3, 100),
        ("vit", "small", 2e-3, 20),  # which had got nowhere by then when it started at 0.02
        ("resnet", "tiny", 4e-3, 60),
    ],
)
def test_training_learns_to_read_digits(family: str, size: str, lr: float, steps: int) -> None:
    task = digits(family, size, batch=64)
    model = task.model()
    before = task.validate(model)
    optimizer = DeVA(model, lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        task.loss(model, task.batch(step)).backward()
        optimizer.step()
    after = task.validate(model)
    assert before["accuracy"] < 0.25
    assert after["loss"] < before["loss"] / 2, after
    assert after["accuracy"] > 0.6, after


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "size", "data", "message"),
    [
        ("mlp", "tiny", "digit", "unknown images 'digit', did you mean 'digits'"),
        ("vit", "vit-l16", "digits", "multiple of 16 pixels, got 8"),
    ],
)
def test_errors_come_before_anything_is_loaded(
    family: str, size: str, data: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_image_task(family, size, data)


def test_every_size_is_accepted_for_some_data() -> None:
    for family, (_, sizes) in FAMILIES.items():
        for size in sizes:
            check_image_task(family, size, "imagenet-1k" if "16" in size else "digits")
