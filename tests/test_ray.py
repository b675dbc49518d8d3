"""The Ray executor on a real cluster of three nodes of this machine: a head without cores and two of one core."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from small import planned, small_trials

from headcount import cli
from headcount.config import BadInput
from headcount.experiments import Execution, RayCluster, Store, memory, ray_executor, runner
from headcount.experiments.store import FILE_NAME

EXACT = ["id", "status", "error", "error_stderr", "best_error", "best_stderr", "best_step", "last_step", "weight_norm",
         "parameters", "stack", "environment"]  # fmt: skip
STORE_BYTES = 80 * 2**20
BROKEN_SEED, DEADLY_SEED = 13, 17
CLI = [sys.executable, "-m", "headcount", "sweep", "polynomial", "--k", "2", "--tokens", "5", "--attention", "mha",
       "--heads", "1:6", "--seeds", "2", "--executor", "ray"]  # fmt: skip


def trials_of(steps=60, **grid):
    return small_trials(heads=range(1, 5), steps=steps, grid=grid)


def rows_of(folder):
    return Store(folder, create=False).rows().sort_values("id").reset_index(drop=True)


def assert_as_local(folder, trials):
    """Every trial once, and every number of it the one that this machine gives without Ray."""
    local = planned(folder / "local", trials)
    runner.run(trials, local, Execution("cpu", 1))
    ours = Store(folder, create=False)
    pd.testing.assert_frame_equal(rows_of(folder)[EXACT], rows_of(folder / "local")[EXACT])
    pd.testing.assert_frame_equal(ours.curves(), local.curves())


def finished(folder):
    return (folder / FILE_NAME).exists() and int(rows_of(folder)["status"].eq("done").sum())


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# Without Ray


def test_without_ray_it_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(sys, "argv", ["headcount", *CLI[3:], "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "pip install 'headcount[ray]'" in capsys.readouterr().err
    assert set(rows_of(tmp_path)["status"]) == {"planned"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus_per_group": 0}, "above 0"),
        ({"cpus_per_group": 1.5}, "whole numbers"),
        ({"gpus_per_group": -1}, "0 or more"),
        ({"gpus_per_group": float("nan")}, "0 or more"),
    ],
)
def test_amounts_that_ray_cannot_set_aside(options, message):
    with pytest.raises(BadInput, match=message):
        RayCluster(**options)


def test_device_follows_the_gpus_of_a_group():
    assert RayCluster().device("auto") == "cpu"
    assert RayCluster(gpus_per_group=0.25).device("auto") == "cuda"
    with pytest.raises(BadInput, match="'cuda' does not go with"):
        RayCluster().device("cuda")


def test_slots_of_a_node():
    node = {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 2.0}}
    assert RayCluster().slots(node) == 16
    assert RayCluster(cpus_per_group=0.1).slots(node) == 160
    assert RayCluster(cpus_per_group=3, gpus_per_group=0.25).slots(node) == 5
    assert RayCluster(gpus_per_group=1).slots(node) == 2
    assert RayCluster(gpus_per_group=1).slots({**node, "Resources": {"CPU": 16.0}}) == 0
    assert RayCluster().slots({**node, "Alive": False}) == 0


def test_options_of_a_cluster_need_the_ray_executor(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["headcount", "sweep", "polynomial", "--gpus-per-group", "1"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--gpus-per-group goes with --executor ray" in capsys.readouterr().err


# With Ray

needs_ray = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import ray"], capture_output=True).returncode != 0, reason="Ray is not installed"
)  # fmt: skip


class Nodes:
    """The cluster, and what tests do with it."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        # Ray's own tests find a dead node this fast.
        quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
                "_system_config": quick,
            },
        )
        self.add()
        self.add()
        self.address = self.cluster.address

    def add(self):
        return self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


@pytest.fixture(scope="module")
def nodes():
    made = Nodes()
    yield made
    made.cluster.shutdown()


@pytest.fixture
def incomplete(nodes):
    """A connection whose workers lack a package."""
    import ray

    def hook():
        sys.modules["pydantic"] = None

    ray.init(
        address=nodes.address,
        runtime_env={"worker_process_setup_hook": hook},
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@needs_ray
def test_rows_are_those_of_the_local_executor(nodes, tmp_path):
    trials = trials_of(**{"training.learning_rate": [0.01, 0.02], "task.k": [2, 3]})
    store, told = planned(tmp_path, trials), []
    report = runner.run(trials, store, Execution(cluster=RayCluster(nodes.address)), lambda *now: told.append(now))
    assert (report.ran, report.left, report.elsewhere, report.died) == (32, 0, 0, 0)
    steps = [done for done, _, _ in told]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, 8 * 60)
    assert_as_local(tmp_path, trials)


@needs_ray
def test_nodes_run_the_code_of_the_driver(nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ray_executor._connected(RayCluster(nodes.address), None):
        import ray

        where = ray.get(ray.remote(lambda: __import__("headcount").__file__).remote())
    assert "runtime_resources" in where
    assert not where.startswith(str(Path(cli.__file__).parent))


@needs_ray
def test_a_lost_node_costs_nothing_but_time(nodes, tmp_path):
    trials = trials_of(steps=400, **{"model.heads": [1, 2, 3, 4, 5, 6]})
    store, lost = planned(tmp_path, trials), []

    def lose_a_node(done, total, label):
        if done >= 400 and not lost:
            lost.append(next(iter(nodes.cluster.worker_nodes)))
            nodes.cluster.remove_node(lost[0], allow_graceful=False)

    report = runner.run(trials, store, Execution(cluster=RayCluster(nodes.address)), lose_a_node)
    nodes.add()
    assert lost
    assert (report.ran, report.failed, report.left, report.elsewhere) == (12, 0, 0, 0)
    assert not report.broken
    assert_as_local(tmp_path, trials)


@needs_ray
def test_a_node_that_lacks_a_package_is_said(incomplete, tmp_path):
    trials = trials_of()
    with pytest.raises(BadInput, match=r"cannot train: ModuleNotFoundError: .*pydantic"):
        runner.run(trials, planned(tmp_path, trials), Execution(cluster=RayCluster()))
    assert set(rows_of(tmp_path)["status"]) == {"planned"}


@needs_ray
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_a_stopped_driver_held_is_done_locally(nodes, tmp_path, how):
    command = [*CLI, "--set", "training.steps=1000", "--address", nodes.address, "--results", str(tmp_path)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: finished(tmp_path) or driver.poll() is not None)
    driver.send_signal(how)
    _, errors = driver.communicate(timeout=120)
    statuses = set(rows_of(tmp_path)["status"])
    if how == signal.SIGINT:
        assert driver.returncode == 130, errors
        assert "the same command resumes" in errors
        assert "Traceback" not in errors
        assert statuses == {"done", "planned"}
    else:
        assert "running" in statuses
    before = rows_of(tmp_path).set_index("id")["finished_at"].dropna()
    trials = list(Store(tmp_path).trials().values())
    report = runner.run(trials, Store(tmp_path), Execution("cpu", 1))
    assert (report.already, report.ran, report.elsewhere) == (len(before), 12 - len(before), 0)
    assert rows_of(tmp_path).set_index("id")["finished_at"][before.index].equals(before)
    assert_as_local(tmp_path, trials)


@needs_ray
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "nonsense"}, "'nonsense' is no address"),
        ({"address": "127.0.0.1:1"}, "no Ray cluster at '127.0.0.1:1'"),
        ({"address": "ray://127.0.0.1:1"}, "no Ray cluster at 'ray://127.0.0.1:1'"),
        ({"address": "ours", "cpus_per_group": 2}, "no node of the Ray cluster has what a group takes"),
        ({"address": "ours", "gpus_per_group": 0.5}, "gpus = 0.5"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_said_at_once(nodes, tmp_path, options, message):
    trials = trials_of()
    if options["address"] == "ours":
        options = {**options, "address": nodes.address}
    with pytest.raises(BadInput, match=message):
        runner.run(trials, planned(tmp_path, trials), Execution(cluster=RayCluster(**options)))
    assert set(rows_of(tmp_path)["status"]) == {"planned"}


@needs_ray
def test_what_no_node_can_hold_is_refused_before_it_starts(nodes, tmp_path):
    trials = trials_of(**{"training.batch": [10**6], "task.tokens": [64]})
    with pytest.raises(BadInput, match=r"needs about .* GiB .*, and a Ray node has"):
        runner.run(trials, planned(tmp_path, trials), Execution(cluster=RayCluster(nodes.address)))
    assert set(rows_of(tmp_path)["status"]) == {"planned"}


@needs_ray
def test_groups_are_cut_until_a_node_can_hold_them(nodes, tmp_path, monkeypatch):
    trials = trials_of()
    monkeypatch.setattr(memory, "SHARE", memory.needed(trials[:1]).total / 2**50)
    runner.run(trials, planned(tmp_path, trials), Execution(cluster=RayCluster(nodes.address)))
    assert set(rows_of(tmp_path)["stack"]) == {1}
    assert_as_local(tmp_path, trials)


@needs_ray
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read from /proc")
def test_a_cluster_of_its_own_listens_on_loopback_only_and_ends(tmp_path):
    command = [*CLI, "--workers", "1", "--set", "training.steps=1000", "--results", str(tmp_path)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: finished(tmp_path) or driver.poll() is not None)
    family = descendants(driver.pid)
    listening = {address for pid in family for address in listening_addresses(pid)}
    driver.send_signal(signal.SIGTERM)
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 128 + signal.SIGTERM, errors
    assert len(family) > 4
    assert listening == {"127.0.0.1"}
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    assert "running" not in set(rows_of(tmp_path)["status"])


def descendants(pid):
    """A process and all below it."""
    found = {pid}
    for thread in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
            found |= descendants(int(child))
    return found


def listening_addresses(pid):
    """Addresses on which a process accepts TCP connections, IPv4 in its usual form, others in hexadecimal."""
    mine = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            mine.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                address = fields[1].partition(":")[0].removeprefix("0000000000000000FFFF0000")
                yield ".".join(str(byte) for byte in bytes.fromhex(address)[::-1]) if len(address) == 8 else address


@pytest.fixture(scope="module")
def faulty(nodes):
    """A connection whose workers fail on purpose. Runs of this process use it from then on: what needs it comes last."""
    import ray

    ray.init(
        address=nodes.address,
        runtime_env={"worker_process_setup_hook": fail_on_purpose(BROKEN_SEED, DEADLY_SEED)},
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


def fail_on_purpose(broken, deadly):
    """What workers do first. A function made here travels by value: nodes cannot import tests."""

    def hook():
        from headcount.experiments import attempt

        train = attempt.train

        def trained(trials, *others):
            seeds = {trial.seed for trial in trials}
            if broken in seeds:
                raise ArithmeticError("thirteen brings bad luck")
            if deadly in seeds:
                os._exit(9)
            return train(trials, *others)

        attempt.train = trained

    return hook


@needs_ray
def test_exceptions_and_dead_workers_are_rows_of_their_trials_alone(faulty, tmp_path):
    trials = trials_of(**{"model.heads": [1], "seed": [0, BROKEN_SEED]}) + trials_of(
        **{"model.heads": [2], "seed": [0, DEADLY_SEED]}
    )
    report = runner.run(trials, planned(tmp_path, trials), Execution(cluster=RayCluster()))
    assert report.causes == {"ArithmeticError": 1, "worker died": 1}
    assert report.died == 1 + ray_executor.MOST_DEATHS
    rows = rows_of(tmp_path).set_index("seed").sort_index()
    assert rows.loc[0, "status"].tolist() == ["done", "done"]
    assert "thirteen brings bad luck" in rows.loc[BROKEN_SEED, "traceback"]
    assert "in train" in rows.loc[BROKEN_SEED, "traceback"]
    assert "died unexpectedly" in rows.loc[DEADLY_SEED, "traceback"]


@needs_ray
def test_fail_fast_stops_at_the_first_failed_trial(faulty, tmp_path):
    trials = trials_of(steps=2000, **{"model.heads": list(range(1, 13)), "seed": [0]})
    broken = trials_of(steps=2001, **{"model.heads": [1], "seed": [BROKEN_SEED]})
    report = runner.run(
        broken + trials, planned(tmp_path, broken + trials), Execution(fail_fast=True, cluster=RayCluster())
    )
    assert report.causes == {"ArithmeticError": 1}
    assert report.left > 0
    assert report.left + report.ran == 13
    assert "running" not in set(rows_of(tmp_path)["status"])


@needs_ray
def test_few_tasks_are_in_flight(faulty, tmp_path, monkeypatch):
    trials = trials_of(steps=5, **{"model.heads": list(range(1, 41)), "seed": [0]})
    most = 0

    def look(done, total, label):
        nonlocal most
        most = max(most, int(rows_of(tmp_path)["status"].eq("running").sum()))

    report = runner.run(trials, planned(tmp_path, trials), Execution(cluster=RayCluster()), look)
    assert report.ran == 40
    assert 0 < most <= ray_executor.IN_FLIGHT * 2
