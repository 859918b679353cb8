"""Which block of a tensor each rank has, without any ranks."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from deva_optim.distributed import placement


def blocks(shape: tuple[int, ...], sizes: tuple[int, ...], placements: Any) -> list[Any]:
    """For each rank the pieces of its block."""
    return [
        placement.pieces(placement.block(shape, sizes, placements, at))
        for at in itertools.product(*map(range, sizes))
    ]


@pytest.mark.parametrize("length", range(1, 10))
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_shards_are_those_of_torch_chunk(length: int, count: int) -> None:
    found = [range(length)[x] for (((x,), _),) in blocks((length,), (count,), (Shard(0),))]
    theirs = [chunk.tolist() for chunk in torch.arange(length).chunk(count)]
    assert [list(x) for x in found] == theirs + [[]] * (count - len(theirs))


@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Shard(1)),
        (Shard(1), Shard(0)),
        (Shard(0), Shard(0)),
        (Shard(1), Replicate()),
        (_StridedShard(0, split_factor=2), Shard(0)),
        (_StridedShard(0, split_factor=2), Replicate()),
        (_StridedShard(1, split_factor=3), _StridedShard(0, split_factor=2)),
        (Shard(1), _StridedShard(1, split_factor=2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(8, 4), (7, 5), (3, 2), (1, 6)])
def test_every_entry_is_in_one_block_of_a_copy(shape: tuple[int, int], placements: Any) -> None:
    copies = 2 if Replicate() in placements else 1
    seen = torch.zeros(shape)
    for there, _ in itertools.chain(*blocks(shape, (2, 2), placements)):
        seen[there] += 1
    assert (seen == copies).all()


def test_fsdp_over_tensor_parallelism_cuts_the_later_dimension_first() -> None:
    found = blocks((8,), (2, 2), (_StridedShard(0, split_factor=2), Shard(0)))
    here = (slice(0, 2),)
    assert [there for ((there, x),) in found if x == here] == [
        (slice(0, 2),),
        (slice(4, 6),),
        (slice(2, 4),),
        (slice(6, 8),),
    ]


def test_a_rank_has_a_piece_of_each_of_the_weights_that_are_packed_in_one() -> None:
    first, second = blocks((3, 8), (2,), (_StridedShard(1, split_factor=2),))
    left, right = (slice(0, 3), slice(0, 2)), (slice(0, 3), slice(2, 4))  # in the block
    assert first == [((slice(0, 3), slice(0, 2)), left), ((slice(0, 3), slice(4, 6)), right)]
    assert second == [((slice(0, 3), slice(2, 4)), left), ((slice(0, 3), slice(6, 8)), right)]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9])
def test_pieces_make_up_the_blocks_of_torch(length: int) -> None:
    X, along = torch.arange(2 * length).view(2, length), _StridedShard(1, split_factor=2)
    theirs, _ = along._split_tensor(X, 4, with_padding=False)
    for pieces, Y in zip(blocks((2, length), (4,), (along,)), theirs, strict=True):
        found = torch.full_like(Y, -1)
        for there, here in pieces:
            found[here] = X[there]
        assert torch.equal(found, Y)


def test_a_partial_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="must be Shard or Replicate .* redistribute it"):
        placement.block((4,), (2,), (Partial(),), (0,))


def test_sums_are_made_on_the_device_of_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CPUOffloadPolicy parameters are on another one, for which there may be no backend."""
    group = placement.RankGroup.__new__(placement.RankGroup)
    group.size, group.group, group.mesh = 2, None, SimpleNamespace(device_type="meta")
    sent = []
    monkeypatch.setattr(placement.dist, "all_reduce", lambda X, group: sent.append(X.device.type))
    with FakeTensorMode():
        group.sum_(X := torch.zeros(3))
    assert (sent, X.device.type) == (["meta"], "cpu")
