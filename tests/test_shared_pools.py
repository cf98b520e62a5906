"""The pools that modules share: which are open, in which order they are closed, and what errors do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from shared_pools import MAX_IDLE_S, SharedPools


class Kinds:
    """Pools that record their starts and ends; ``fail_to_start``, ``fail_to_stop``: kinds that raise."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fail_to_start: set[str] = set()
        self.fail_to_stop: set[str] = set()

    def __call__(self, kind: str) -> Callable[[], AbstractContextManager[str]]:
        @contextmanager
        def start() -> Iterator[str]:
            if kind in self.fail_to_start:
                raise OSError(f"{kind} does not start")
            self.events.append(f"+{kind}")
            yield f"pool {kind}"
            self.events.append(f"-{kind}")
            if kind in self.fail_to_stop:
                raise OSError(f"{kind} does not stop")

        return start


@pytest.fixture
def kinds() -> Kinds:
    return Kinds()


def use_once(pools: SharedPools, kinds: Kinds, *names: str) -> None:
    for name in names:
        with pools.use(name, kinds(name)) as pool:
            assert pool == f"pool {name}"


def test_pool_stays_open_for_the_next_module(kinds: Kinds) -> None:
    use_once(SharedPools(2), kinds, "a", "b", "a", "b", "a")
    assert kinds.events == ["+a", "+b"]


def test_least_recently_used_pool_is_closed_before_another_starts(kinds: Kinds) -> None:
    use_once(SharedPools(2), kinds, "a", "b", "a", "c", "a", "b")
    assert kinds.events == ["+a", "+b", "-b", "+c", "-c", "+b"]


def test_order_is_that_of_the_last_use_and_not_of_its_begin(kinds: Kinds) -> None:
    pools = SharedPools(2)
    with pools.use("a", kinds("a")):
        use_once(pools, kinds, "b")
    use_once(pools, kinds, "c")
    assert kinds.events == ["+a", "+b", "-b", "+c"]


def test_pool_in_use_is_never_closed(kinds: Kinds) -> None:
    pools = SharedPools(2)
    with pools.use("a", kinds("a")), pools.use("b", kinds("b")):
        use_once(pools, kinds, "c", "d")
        assert kinds.events == ["+a", "+b", "+c", "-c", "+d"]
    use_once(pools, kinds, "e")
    assert kinds.events[5:] == ["-d", "-b", "+e"], "as many as leave room for two"


def test_pool_of_two_users_is_in_use_until_both_have_returned_it(kinds: Kinds) -> None:
    pools = SharedPools(1)
    with pools.use("a", kinds("a")):
        with pools.use("a", kinds("a")):
            pass
        use_once(pools, kinds, "b")
        assert kinds.events == ["+a", "+b"]
    use_once(pools, kinds, "c")
    assert kinds.events == ["+a", "+b", "-b", "-a", "+c"]


def test_failed_module_returns_its_pool(kinds: Kinds) -> None:
    pools = SharedPools(1)
    with pytest.raises(KeyboardInterrupt), pools.use("a", kinds("a")):
        raise KeyboardInterrupt
    use_once(pools, kinds, "b")
    assert kinds.events == ["+a", "-a", "+b"]


def test_pool_is_closed_when_it_was_idle_for_long(kinds: Kinds) -> None:
    now = 0.0
    pools = SharedPools(3, lambda: now)
    use_once(pools, kinds, "a")
    with pools.use("b", kinds("b")):
        now = MAX_IDLE_S - 1
        use_once(pools, kinds, "c")
        pools.close_idle()
        assert kinds.events == ["+a", "+b", "+c"]
        now = MAX_IDLE_S
        pools.close_idle()
        assert kinds.events[3:] == ["-a"], "b is in use, and c was just now"
    now = 2 * MAX_IDLE_S - 1
    pools.close_idle()
    assert kinds.events[4:] == ["-c"]
    now = 2 * MAX_IDLE_S
    pools.close_idle()
    assert kinds.events[5:] == ["-b"]


def test_all_pools_are_closed_at_the_end(kinds: Kinds) -> None:
    pools = SharedPools(3)
    use_once(pools, kinds, "a", "b", "c")
    pools.close()
    assert sorted(kinds.events[3:]) == ["-a", "-b", "-c"]
    pools.close()
    assert len(kinds.events) == 6, "each once"


def test_failed_start_leaves_other_pools_usable(kinds: Kinds) -> None:
    pools = SharedPools(2)
    kinds.fail_to_start = {"b"}
    use_once(pools, kinds, "a")
    with pytest.raises(OSError, match="b does not start"), pools.use("b", kinds("b")):
        pass
    kinds.fail_to_start = set()
    use_once(pools, kinds, "a", "b")
    pools.close()
    assert kinds.events == ["+a", "+b", "-b", "-a"]


def test_failed_end_is_reported_at_the_end_and_not_by_the_next_module(kinds: Kinds) -> None:
    pools = SharedPools(2)
    kinds.fail_to_stop = {"a", "b"}
    use_once(pools, kinds, "a", "b", "c")
    with pytest.raises(ExceptionGroup) as raised:
        pools.close()
    assert [str(error) for error in raised.value.exceptions] == ["a does not stop", "b does not stop"]
    assert kinds.events == ["+a", "+b", "-a", "+c", "-c", "-b"]
