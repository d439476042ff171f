"""Pretraining in processes of its own: killed by the system, several at once, then fewer."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from test_pretrain import CONFIG, corpus, make, observed, one_thread  # noqa: F401

from staircase_lib.language import checkpoints, folders
from staircase_lib.language.pretrain import pretrain

SPREAD = replace(CONFIG, steps=12, checkpoint_every=2, accumulate=2)

PROGRAM = """
import torch
from test_pretrain_processes import *
torch.set_num_threads(1)
config = replace(CONFIG, steps=4000)
pretrain(make(), corpus(), config, folder=sys.argv[1], progress=lambda *a: print(*a, flush=True))
"""


def test_killed_by_the_system_only_what_follows_the_last_checkpoint_is_lost(tmp_path):
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    here = os.path.dirname(__file__)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=here) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line.split()[0]) >= 20:
                break
        with pytest.raises(folders.FolderInUse, match="another run is writing"):
            pretrain(make(), corpus(), replace(CONFIG, steps=4000), folder=tmp_path)
        process.send_signal(signal.SIGKILL)
    newest = checkpoints.latest(tmp_path)
    assert newest is not None
    saved = checkpoints.check(newest)
    assert saved >= 18
    # The same run, stopped early to keep this short.
    reached = []

    def stop(done, steps, text):
        reached.append(done)
        if len(reached) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(make(), corpus(), replace(CONFIG, steps=4000), folder=tmp_path, progress=stop)
    assert reached[0] == saved + 1


SEVERAL = """
import torch
from test_pretrain_processes import *
from pathlib import Path
from staircase_lib.language import processes
folder = Path(sys.argv[1])
torch.set_num_threads(1)
with processes.together():
    assert processes.count() == 2
    for given, message in [
        ((make(runs=2), corpus(), CONFIG), "several runs at once train in one process"),
        ((make(), corpus(), replace(CONFIG, batch=6, accumulate=2)), "2 processes × accumulate=2"),
    ]:
        with pytest.raises(ValueError, match=message):
            pretrain(*given)
    if (folder / "checkpoints").exists():  # raised in both
        with pytest.raises(checkpoints.CheckpointError, match="another vocabulary"):
            pretrain(make(), corpus(), SPREAD, folder=folder, vocabulary="other")

    def kill(done, steps, text):
        if done in (5, 9) and not (folder / str(done)).exists():
            (folder / str(done)).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    # Whoever drew it, all start from the first process' model.
    model = make(first=processes.rank())
    pretrain(model, corpus(), SPREAD, folder=folder, observe=observed, progress=kill)
"""


def test_two_processes_killed_twice_then_one_reach_the_losses_of_one(tmp_path):
    (tmp_path / "program.py").write_text(SEVERAL)
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"),
            *(str(tmp_path / "program.py"), str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": here},
    )
    assert (tmp_path / "run/9").exists(), done.stderr  # killed, started again by torchrun, killed
    assert done.returncode != 0
    newest = checkpoints.latest(tmp_path / "run")
    assert newest is not None and checkpoints.check(newest) == 8
    assert len(list(newest.glob("*.safetensors"))) == 2
    resumed = pretrain(make(), corpus(), SPREAD, folder=tmp_path / "run", observe=observed)
    assert resumed.started == 8
    alone = pretrain(make(), corpus(), SPREAD, observe=observed)
    np.testing.assert_allclose(resumed.losses, alone.losses, rtol=1e-5)
    np.testing.assert_allclose(resumed.grad_norm, alone.grad_norm, rtol=1e-4)
    np.testing.assert_allclose(resumed.kept, alone.kept, rtol=1e-3, atol=1e-5)
    assert resumed.rows["step"].tolist() == alone.rows["step"].tolist()
    np.testing.assert_allclose(resumed.rows["value"], alone.rows["value"], rtol=1e-5)
