"""Machines and GPUs: what is shown of them, and cordon, drain, labels and modes by roles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from pool_world import ANN, BEGIN, world_in
from web_harness import Site, words

from gpupool.domain.nodes.gpu import ForeignProcess, Gpu, GpuHealth, Node, NodeReport, NodeState
from gpupool.domain.nodes.gpu_check import GpuCheck
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample
from gpupool.web.pages.nodes.view import find_gpu, link_meanings, node_line, siblings, topology

MEMBER_UID = 4711
HERE = "/nodes/here"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site with one node of two GPUs, on which a training and a session run."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("nodes")) as world:

        async def story() -> None:
            await world.submit(ANN, name="train-1", gpus={"count": 1}, command=["secret-command"])
            await world.submit(ANN, name="session-1", gpus={"fraction": 0.25}, kind="interactive")

        world.do(story())
        yield Site(world)


def node(site: Site) -> Node:
    return site.world.do(site.world.services.nodes.node("here"))


def test_node_list_shows_held_and_free_gpus(site: Site) -> None:
    said = words(site.get("/nodes").text)
    assert "Nodes up 1 of 1" in said
    assert "here ● up 2 x" in said
    table = site.get("/nodes?format=csv&table=nodes").text.splitlines()
    assert dict(zip(*(line.split(",") for line in table), strict=False))["held"] == "1.25"


def test_node_page_shows_programs_and_effect_of_drain(site: Site) -> None:
    said = words(site.get(HERE, MEMBER_UID).text)
    assert "train-1 0 ▶ running training ann default 1" in said
    assert "evicted and queued again" in said
    assert "continues (protected)" in said
    assert "secret-command" not in said


def test_gpu_page_shows_holders_of_slices(site: Site) -> None:
    gpus = node(site).report.gpus
    pages = [words(site.get(f"{HERE}/gpus/{gpu.index}", MEMBER_UID).text) for gpu in gpus]
    shared = next(said for said in pages if "session-1" in said)
    assert "0.25 of 1 GPU" in shared
    assert "session-1 ann default 0.25" in shared
    assert any("train-1" in said and "1 of 1 GPU" in said for said in pages)
    assert site.get(f"{HERE}/gpus/77").status_code == 404
    assert site.get("/nodes/nowhere").status_code == 404
    assert site.get("/nodes/nowhere/gpus/0").status_code == 404


def test_member_sees_no_buttons_and_cannot_send_their_forms(site: Site) -> None:
    for path in ("/nodes", HERE, f"{HERE}/gpus/0"):
        assert 'method="post"' not in site.get(path, MEMBER_UID).text.partition("<main")[2], path
    before = node(site)
    for path in ("cordon", "uncordon", "labels", "sharing", "gpus/0/sharing", "gpus/0/cordon"):
        answer = site.post(f"{HERE}/{path}", MEMBER_UID, reason="mine", drain="on", labels="pool=mine", mode="whole")
        assert (path, answer.status_code) == (path, 403)
    assert node(site) == before


def test_cordon_and_uncordon(site: Site) -> None:
    done = site.post(f"{HERE}/cordon", reason="new fans")
    assert (done.status_code, done.headers["location"]) == (303, HERE)
    assert (node(site).state, node(site).cordon_reason) == (NodeState.CORDONED, "new fans")
    said = words(site.get(HERE).text)
    assert "Cordoned: new fans." in said
    assert "cordoned" in words(site.get("/nodes").text) or "cordoned" in words(site.get("/nodes").text)
    assert site.post(f"{HERE}/cordon", reason="x" * 501).status_code == 422
    assert site.post(f"{HERE}/uncordon").status_code == 303
    assert (node(site).state, node(site).cordon_reason) == (NodeState.UP, "")


def test_cordon_and_uncordon_of_one_gpu(site: Site) -> None:
    gpu = f"{HERE}/gpus/0"
    done = site.post(f"{gpu}/cordon", reason="memory errors")
    assert (done.status_code, done.headers["location"]) == (303, gpu)
    assert node(site).state is NodeState.UP
    assert list(node(site).cordoned_gpus.values()) == ["memory errors"]
    assert "cordoned: memory errors" in words(site.get(gpu).text)
    assert "cordoned: memory errors" in words(site.get(HERE).text)
    assert site.post(f"{gpu}/cordon", reason="x" * 501).status_code == 422
    assert site.post(f"{gpu}/uncordon").status_code == 303
    assert node(site).cordoned_gpus == {}


def test_labels_are_added_changed_and_removed(site: Site) -> None:
    assert site.post(f"{HERE}/labels", labels="pool=a100\nrack=7").status_code == 303
    assert node(site).labels == {"pool": "a100", "rack": "7"}
    assert site.post(f"{HERE}/labels", labels="pool=t4").status_code == 303
    assert node(site).labels == {"pool": "t4"}
    wrong = site.post(f"{HERE}/labels", labels="no value")
    assert (wrong.status_code, "has no =" in wrong.text, "no value" in wrong.text) == (422, True, True)
    assert site.post(f"{HERE}/labels", labels="bad key!=1").status_code == 422
    assert node(site).labels == {"pool": "t4"}
    assert site.post(f"{HERE}/labels", labels="").status_code == 303


def test_sharing_mode_is_set_for_a_node_and_for_one_gpu(site: Site) -> None:
    assert site.post(f"{HERE}/sharing", mode="whole").status_code == 303
    assert site.post(f"{HERE}/gpus/1/sharing", mode="whole").status_code == 303
    chosen = node(site).sharing
    assert set(chosen.values()) == {"whole"}
    assert len(chosen) == 2
    assert site.post(f"{HERE}/sharing", mode="telepathy").status_code == 422
    site.post(f"{HERE}/sharing", mode="")
    site.post(f"{HERE}/gpus/1/sharing", mode="")
    assert node(site).sharing == {}


def test_drain_requeues_training_and_keeps_session(site: Site) -> None:
    assert site.post(f"{HERE}/cordon", reason="move", drain="on").status_code == 303
    states = [site.world.do(site.world.state(name)) for name in ("train-1", "session-1")]
    assert states == ["queued", "running"]
    site.post(f"{HERE}/uncordon")
    assert site.world.do(site.world.state("train-1")) == "running"


# Values


def mig(index: int, profile: str) -> Gpu:
    return Gpu(f"MIG-{index}", index, f"NVIDIA A100 MIG {profile}", 20_000, mig_profile=profile, parent_uuid="GPU-b")


CARDS = (
    Gpu("GPU-a", 0, "Tesla T4", 15_360, links={1: "NV4", 2: "SYS"}, health=GpuHealth.FAILED, health_note="XID 79"),
    Gpu("GPU-c", 1, "Tesla T4", 15_360, links={0: "NV4", 2: "PIX"}, foreign=(ForeignProcess(7, "eve", "python", 900),)),
    Gpu("GPU-d", 2, "Tesla T4", 15_360, links={0: "SYS"}),
    mig(100, "3g.20gb"),
    mig(101, "1g.5gb"),
)
NODE = Node(NodeReport("n1", 8, 1000, CARDS, emulated=False, boot_id="", agent_version="1", sharing=("share",)))
LOOK = NodeSample("n1", 1, 5.0, 50.0, 10, (GpuSample("GPU-c", 42.0, 1024, power_w=70.0, temperature_c=61.0),))


def test_health_foreign_processes_and_measurements_of_a_gpu() -> None:
    line = node_line(NODE, (), LOOK, {})
    failed, taken, plain = (find_gpu(line, index) for index in (0, 1, 2))
    assert (failed.health, failed.note) == ("failed", "XID 79")
    assert (taken.health, taken.note) == ("foreign", "1 foreign process: not allocated")
    assert (taken.use, taken.temperature, taken.power, taken.memory_used) == (42.0, 61.0, 70.0, 2.0**30)
    assert (plain.use, plain.mode) == (None, "share")
    assert (line.heard_at, line.free) == (5.0, 3000)


def test_link_matrix_and_mig_instances_are_shown() -> None:
    found = topology(NODE)
    assert found is not None
    assert found.rows[0] == (0, ("X", "NV4", "SYS", "?", "?"))
    assert [link for link, _ in link_meanings(found)] == ["NV", "PIX", "SYS"]
    assert topology(Node(NodeReport("n1", 8, 1, CARDS[3:], emulated=False, boot_id="", agent_version=""))) is None
    line = node_line(NODE, (), None, {})
    assert [other.index for other in siblings(line, CARDS[3])] == [100, 101]
    assert siblings(line, CARDS[0]) == []


def test_page_of_a_gpu_shows_the_latest_result_of_its_checks(site: Site) -> None:
    latest = site.world.services.gpu_checks.latest
    latest["GPU-1"] = GpuCheck(BEGIN, "fail", 2, "Tesla T4", "memory: 1 word of memory changed", "w-checked")
    try:
        page = site.get(f"{HERE}/gpus/1").text
        assert "fail (memory: 1 word of memory changed)" in words(page)
        assert "at level 2" in words(page)
        assert 'href="/workloads/w-checked"' in page
        assert "at level" not in words(site.get(f"{HERE}/gpus/0").text)
    finally:
        latest.clear()
