"""State dicts, copies and hooks of every optimizer, option by option, as PyTorch tests its own.

See `test_info` for what each test names.
"""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import OptimizerInfo, optims
from torch.testing._internal.common_utils import parametrize

from .descriptions import OPTIM_DB, DescribedTestCase, affine, each_input, push, take, twins


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def named(params: list[nn.Parameter], with_names: bool) -> list[Any]:
    return [(f"part{i}", p) for i, p in enumerate(params)] if with_names else params


class TestOptimizerState(DescribedTestCase):
    # State ---------------------------------------------------------------------------------------

    @optims(OPTIM_DB)
    def test_state_is_made_by_the_first_step(self, device, dtype, optim_info):
        """test_non_empty_state, and none of it before."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, loss = affine(device, dtype)
                optimizer = optim_info.optim_cls(params, **kwargs)
                assert not optimizer.state
                take(optimizer, loss, steps=1)
                assert set(optimizer.state) == set(params)
                for state in optimizer.state.values():
                    assert "step" in state
                    assert all(isinstance(x, Tensor) for x in state.values())

    @optims(OPTIM_DB)
    def test_defaults_are_not_those_of_a_group(self, device, dtype, optim_info):
        """`defaults` holds what the constructor was given, whatever a group or a step does."""
        (weight, bias), loss = affine(device, dtype)
        optimizer = optim_info.optim_cls([{"params": [weight], "lr": 0.5}], lr=0.25)
        before = copy.deepcopy(optimizer.defaults)
        optimizer.add_param_group({"params": [bias], "weight_decay": 0.75})
        take(optimizer, loss, steps=2)
        assert optimizer.defaults == before
        assert optimizer.defaults["lr"] == 0.25
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
        assert optimizer.param_groups[1]["weight_decay"] == 0.75

    @optims(OPTIM_DB)
    def test_printing(self, device, dtype, optim_info):
        """test_optimizer_can_be_printed."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                given = {"lr": 0.0625, **kwargs}
                text = repr(optim_info.optim_cls(affine(device, dtype)[0], **given))
                assert text.startswith(f"{optim_info.name} (")
                assert f"lr: {given['lr']}" in text
                assert "refresh_every: " in text

    @optims(OPTIM_DB)
    def test_state_goes_through_a_file_and_on_as_the_original(self, device, dtype, optim_info):
        """test_save_load_equality_with_weights_only and test_state_dict_deterministic."""
        for desc, kwargs in each_input(optim_info, device):
            with self.subTest(desc):
                params, _ = affine(device, dtype)
                optimizer = optim_info.optim_cls(params, **kwargs)
                push(optimizer, params, 1, steps=2)
                loaded = through_a_file(optimizer.state_dict())
                self.assert_same(loaded, optimizer.state_dict())
                copies = twins(params)
                other = optim_info.optim_cls(copies, **copy.deepcopy(kwargs))
                other.load_state_dict(loaded)
                push(optimizer, params, 2, steps=2)
                push(other, copies, 2, steps=2)
                self.assert_same(params, copies)
                self.assert_same_state(other, optimizer)

    @parametrize("names", [True, False])
    @parametrize("other_names", [True, False])
    @optims(OPTIM_DB)
    def test_state_with_names(self, device, dtype, optim_info, names, other_names):
        """test_can_load_from_to_named_state_dict."""
        params, _ = affine(device, dtype)
        optimizer = optim_info.optim_cls(named(params, names))
        push(optimizer, params, 1, steps=2)
        loaded = through_a_file(optimizer.state_dict())
        self.assert_same(loaded, optimizer.state_dict())
        copies = twins(params)
        other = optim_info.optim_cls(named(copies, other_names))
        other.load_state_dict(loaded)
        push(optimizer, params, 2, steps=2)
        push(other, copies, 2, steps=2)
        self.assert_same(params, copies)
        self.assert_same_state(other, optimizer)
        if names or other_names:
            kept = [n for group in other.param_groups for n in group["param_names"]]
            assert sorted(kept) == ["part0", "part1"]

    @optims(OPTIM_DB)
    def test_copies(self, device, dtype, optim_info):
        """test_deepcopy_copies_all_public_attrs; test_contract_state has where a copy goes on."""
        for desc, kwargs in each_input(optim_info, device):
            params, loss = affine(device, dtype)
            optimizer = optim_info.optim_cls(params, **copy.deepcopy(kwargs))
            take(optimizer, loss, steps=2)
            for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
                with self.subTest(f"{desc}, {copied.__name__}"):
                    other = copied(optimizer)
                    public = [{k for k in vars(o) if k[0] != "_"} for o in (optimizer, other)]
                    assert public[0] == public[1]
                    self.assert_same_state(other, optimizer)

    @optims(OPTIM_DB)
    def test_older_state_dict(self, device, dtype, optim_info):
        """test_can_load_older_state_dict: from before an option existed."""
        params, loss = affine(device, dtype)
        optimizer = optim_info.optim_cls(params)
        take(optimizer, loss, steps=2)
        old = copy.deepcopy(optimizer.state_dict())
        for group in old["param_groups"]:
            for flag in optim_info.not_og_supported_flags:
                del group[flag]
        copies = twins(params)
        other = optim_info.optim_cls(copies)
        other.load_state_dict(old)
        push(optimizer, params, 1, steps=2)
        push(other, copies, 1, steps=2)
        self.assert_same(params, copies)

    @optims(OPTIM_DB)
    def test_a_state_of_other_groups_is_refused(self, device, dtype, optim_info):
        """test_load_state_dict's two errors: other groups, or groups of other sizes."""
        params, loss = affine(device, dtype)
        more = [nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(8))]
        optimizer = optim_info.optim_cls([{"params": [p]} for p in params])
        take(optimizer, loss, steps=1)
        before = copy.deepcopy(optimizer.state_dict())
        larger = [{"params": [p, q]} for p, q in zip(twins(params), more, strict=True)]
        for groups, message in (
            ([{"params": [more[0]]}], "different number of parameter groups"),
            (larger, "doesn't match the size"),
        ):
            with pytest.raises(ValueError, match=message):
                optimizer.load_state_dict(optim_info.optim_cls(groups).state_dict())
        self.assert_same(optimizer.state_dict(), before)
        take(optimizer, loss, steps=1)  # and nothing of the attempt is left behind

    # Hooks ---------------------------------------------------------------------------------------

    def stepped(self, info: OptimizerInfo, device: Any) -> tuple[list[nn.Parameter], Optimizer]:
        params, loss = affine(device, torch.float32)
        optimizer = info.optim_cls(params)
        take(optimizer, loss, steps=2)
        return params, optimizer

    @optims(OPTIM_DB)
    def test_state_dict_hooks(self, device, dtype, optim_info):
        """test_state_dict_pre_hook, test_state_dict_post_hook, test_state_dict_pre_post_hook."""
        _, optimizer = self.stepped(optim_info, device)
        calls = []

        def before(optimizer: Optimizer) -> None:
            calls.append("before")
            optimizer.param_groups[0]["note"] = "from the hook"

        def after(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            calls.append("after")
            return {**state_dict, "extra": state_dict["param_groups"][0]["note"]}

        handles = [
            optimizer.register_state_dict_pre_hook(before),
            optimizer.register_state_dict_post_hook(after),
        ]
        assert optimizer.state_dict()["extra"] == "from the hook"
        for handle in handles:
            handle.remove()
        assert "extra" not in optimizer.state_dict()
        assert calls == ["before", "after"]

    @optims(OPTIM_DB)
    def test_state_of_a_hook_is_kept(self, device, dtype, optim_info):
        """test_state_dict_pre_hook: what is filed under no parameter goes through a checkpoint."""
        _, optimizer = self.stepped(optim_info, device)
        optimizer.register_state_dict_pre_hook(lambda o: o.state.update(note=1))
        saved = optimizer.state_dict()
        assert saved["state"]["note"] == 1
        params, other = self.stepped(optim_info, device)
        other.load_state_dict(saved)
        assert other.state["note"] == 1
        push(other, params, 1)

    @optims(OPTIM_DB)
    def test_load_state_dict_pre_hooks(self, device, dtype, optim_info):
        """test_load_state_dict_pre_hook_and_prepend: hooks may edit and replace what is loaded."""
        _, source = self.stepped(optim_info, device)
        params, optimizer = self.stepped(optim_info, device)
        saved = source.state_dict()
        first = next(iter(saved["state"]))

        def edit(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            state_dict["param_groups"][0]["lr"] = 0.002

        def replace(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
            mine = copy.deepcopy(state_dict)
            mine["param_groups"][0]["lr"] = 0.003
            assert isinstance(mine["state"][first]["exp_avg"], Tensor)
            mine["state"][first]["exp_avg"].fill_(7)
            return mine

        optimizer.register_load_state_dict_pre_hook(edit)
        handle = optimizer.register_load_state_dict_pre_hook(replace)
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.003
        assert (optimizer.state_dict()["state"][first]["exp_avg"] == 7).all()
        handle.remove()
        optimizer.register_load_state_dict_pre_hook(replace, prepend=True)
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.002  # edit had the last word
        assert (optimizer.state_dict()["state"][first]["exp_avg"] == 7).all()
        assert not (saved["state"][first]["exp_avg"] == 7).any()
        push(optimizer, params, 1)

    @optims(OPTIM_DB)
    def test_load_state_dict_post_hooks(self, device, dtype, optim_info):
        """test_load_state_dict_post_hook, test_load_state_dict_pre_post_hook."""
        _, source = self.stepped(optim_info, device)
        params, optimizer = self.stepped(optim_info, device)
        calls = []

        def before(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            calls.append("before")

        def after(optimizer: Optimizer) -> None:
            calls.append("after")
            optimizer.state[params[0]]["exp_avg"].fill_(7)  # the loaded tensors, ready for use

        for prepend in (False, True):
            calls.clear()
            handles = [
                optimizer.register_load_state_dict_pre_hook(before, prepend=prepend),
                optimizer.register_load_state_dict_post_hook(after, prepend=prepend),
            ]
            optimizer.load_state_dict(source.state_dict())
            assert calls == ["before", "after"]
            assert (optimizer.state[params[0]]["exp_avg"] == 7).all()
            for handle in handles:
                handle.remove()
        push(optimizer, params, 1)

    @optims(OPTIM_DB)
    def test_step_hooks(self, device, dtype, optim_info):
        """test_step_pre_hook, test_step_post_hook, test_step_all_hooks."""
        params, optimizer = self.stepped(optim_info, device)
        other, calls, seen = SGD(params, lr=0.0), [], []

        def call(what: str) -> Callable[..., None]:
            def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
                calls.append(what)
                seen.append(twins(params))

            return hook

        handles = [
            register_optimizer_step_pre_hook(call("all, before")),
            register_optimizer_step_post_hook(call("all, after")),
            optimizer.register_step_pre_hook(call("before")),
            optimizer.register_step_post_hook(call("after")),
        ]
        start = twins(params)
        try:
            push(optimizer, params, 1)
            assert calls == ["all, before", "before", "after", "all, after"]
            self.assert_same(seen[:2], [start, start])
            self.assert_same(seen[2:], [params, params])
            assert not any(torch.equal(p, q) for p, q in zip(params, start, strict=True))
            push(other, params, 2)
            assert calls[4:] == ["all, before", "all, after"]
        finally:
            for handle in handles:
                handle.remove()
        push(optimizer, params, 3)
        assert len(calls) == 6


instantiate_device_type_tests(TestOptimizerState, globals(), only_for="cpu")
