"""Several machines as one pool: work starts where it fits, and its output and state come from its machine."""

from __future__ import annotations

import subprocess

import pytest
from e2e_pool import COMMAND, PATIENCE_S
from machines_harness import Machines, Weather, eventually

SLEEP = "while :; do sleep 0.2; done"


def test_work_is_spread_over_nodes_and_output_is_read_from_them(pool: Machines) -> None:
    for number in range(3):
        pool.submit(f"job-{number}", f"echo this is {number}; {SLEEP}")
    for number in range(3):
        assert pool.becomes(f"job-{number}", "running")
    assert len({pool.node_of(f"job-{number}") for number in range(3)}) == 3
    for number in range(3):
        assert eventually(lambda n=number: f"this is {n}\n" == pool.output(f"job-{n}"))
        node, key = pool.nodes[pool.node_of(f"job-{number}")], pool.key_of(f"job-{number}")
        assert eventually(lambda n=node, k=key: n.programs() == [k]), "shepherds of earlier programs end by themselves"


def test_cut_link_is_noticed_and_restored_without_effect_on_the_job(pool: Machines) -> None:
    pool.submit("kept", f"echo begun; {SLEEP}")
    assert pool.becomes("kept", "running")
    assert eventually(lambda: pool.output("kept") == "begun\n"), "otherwise its exec may still run"
    node, key = pool.nodes[pool.node_of("kept")], pool.key_of("kept")
    node.weather(Weather.CUT)
    assert pool.node_becomes(node.name, "down")
    assert node.programs() == [key]
    node.weather(Weather.FINE)
    assert pool.node_becomes(node.name, "up")
    assert (pool.state_of("kept"), pool.key_of("kept")) == ("running", key)


def test_program_on_another_machine_has_the_local_terminal(pool: Machines) -> None:
    done = pool("run", "-g", "1", "--", "sh", "-c", "read line; echo got $line; exit 7", stdin=b"this\n", ok=False)
    assert (done.returncode, done.stdout) == (7, b"got this\n"), done.stderr


COUNTS = """
for i in $(seq 30); do echo $i; sleep 0.1; done
read line; echo got $line
while ! test -e {gate}; do sleep 0.05; done
echo last; exit 6
"""


def start_run(pool: Machines, name: str) -> subprocess.Popen[bytes]:
    """Start a program that counts, repeats a line of input, and ends when the file of its name exists."""
    return subprocess.Popen(
        [COMMAND, "run", "--name", name, "-g", "1", "--", "sh", "-c", COUNTS.format(gate=pool.work / name)],
        bufsize=0,  # so that ``communicate`` loses nothing that ``readline`` has read ahead
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=pool.env,
        cwd=pool.work,
    )


def test_killed_run_ends_its_remote_program_at_once(pool: Machines) -> None:
    with start_run(pool, "killed") as run:
        assert run.stdout is not None
        run.stdout.readline()
        node = pool.nodes[pool.node_of("killed")]
        run.kill()
    assert eventually(lambda: pool.state_of("killed") == "stopped"), "sooner than it would wait for its client"
    assert pool.replica("killed")["reason"] == "CLIENT_GONE"
    assert eventually(lambda: node.programs() == [])


@pytest.mark.parametrize("ends", [False, True], ids=["runs on", "ends meanwhile"])
def test_run_resumes_after_broken_connection(pool: Machines, ends: bool) -> None:
    name = f"breaks-{ends}".lower()
    run = start_run(pool, name)
    assert run.stdin is not None
    assert run.stdout is not None
    first = run.stdout.readline()
    node, key = pool.nodes[pool.node_of(name)], pool.key_of(name)
    if ends:
        run.stdin.write(b"this\n")
        run.stdin.flush()
        assert eventually(lambda: "got this\n" in pool.output(name))
    node.weather(Weather.CUT)
    assert pool.node_becomes(node.name, "down")
    assert node.programs() == [key]
    (pool.work / name).touch()
    assert not ends or eventually(lambda: not node.programs())
    node.weather(Weather.FINE)
    out, err = run.communicate(b"" if ends else b"this\n", PATIENCE_S * 2)
    assert (first + out).split() == [*(b"%d" % number for number in range(1, 31)), b"got", b"this", b"last"]
    assert run.returncode == 6
    assert b"was lost; reconnecting" in err
    assert pool.key_of(name) == key


def test_frozen_agent_is_noticed_and_its_work_continues(pool: Machines) -> None:
    pool.submit("lives", SLEEP)
    assert pool.becomes("lives", "running")
    node, key = pool.nodes[pool.node_of("lives")], pool.key_of("lives")
    node.freeze()
    assert pool.node_becomes(node.name, "down")
    assert "no answer for" in pool.text("nodes")
    assert "the replica is retried on another node" in pool.text("describe", "lives")
    node.thaw()
    assert pool.node_becomes(node.name, "up")
    assert (pool.state_of("lives"), pool.key_of("lives"), node.programs()) == ("running", key, [key])


def test_training_of_drained_node_moves_to_other_nodes(pool: Machines) -> None:
    pool.submit("travels", SLEEP)
    assert pool.becomes("travels", "running")
    left = pool.node_of("travels")
    pool("drain", left)
    assert eventually(lambda: pool.replica("travels")["attempt"] == 2 and pool.state_of("travels") == "running")
    assert pool.node_of("travels") != left
    assert eventually(lambda: pool.nodes[left].programs() == [])
    assert pool.node_becomes(left, "cordoned")
    pool("uncordon", left)
    assert pool.node_becomes(left, "up")


def test_node_leaves_permanently(pool: Machines) -> None:
    node = pool.add("n9", "2xV100")
    assert pool.node_becomes("n9", "up")
    pool("node", "label", "n9", "pool=leaving")
    pool("submit", "stays", "-g", "2", "--pool", "leaving", "--interactive", "--", "sh", "-c", SLEEP)
    assert pool.becomes("stays", "running")
    for words in (("lost", "n9"), ("remove", "n9")):
        assert b"WRONG_STATE" in pool("node", *words, ok=False).stderr, "it answers"
    node.weather(Weather.CUT)
    assert pool.node_becomes("n9", "down")
    assert b"WRONG_STATE" in pool("node", "remove", "n9", ok=False).stderr, "it holds something"
    pool("node", "lost", "n9", "--reason", "sold")
    assert pool.becomes("stays", "failed")
    assert "sold" in pool.replica("stays")["message"]
    pool.remove("n9")
    pool("node", "remove", "n9")
    assert sorted(pool.node_states()) == ["n1", "n2", "n3", "n4"]
