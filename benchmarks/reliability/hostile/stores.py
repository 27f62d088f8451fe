"""Homes, databases, clusters and results that are not what they should be."""

from __future__ import annotations

from benchmarks.reliability.hostile.case import (
    GOOD,
    KEY,
    PASSWORD,
    SEARCH,
    TRAINED,
    Hostile,
    malicious_weights,
    result,
    study,
)

STORES: tuple[Hostile, ...] = (
    # Stores and servers.
    study("a home that is a file", GOOD, "home/mlflow.db: File exists", "run s.yaml --home home", home="x"),
    study(
        "a home that cannot be", GOOD, "No such file or directory (/proc/nobody)", "run s.yaml --home /proc/nobody/home"
    ),
    study("a tracking store of unknown kind", GOOD, "is of unknown kind 'gopher'", "run s.yaml --tracking gopher://x"),
    study(
        "a tracking store that is no database",
        GOOD,
        "file is not a database",
        "run s.yaml --tracking sqlite:///notes.txt",
        **{"notes.txt": "hello, these are notes" * 99},
    ),
    study(
        "a tracking server that is not there", GOOD, "connection refused", "run s.yaml --tracking http://127.0.0.1:9"
    ),
    study(
        "a database that is not there, with a password",
        GOOD,
        "postgresql+psycopg://me:***@127.0.0.1:9/x: connection refused",
        f"run s.yaml --tracking postgresql+psycopg://me:{PASSWORD}@127.0.0.1:9/x",
    ),
    study(
        "a search's database that is not there, with a password",
        SEARCH + "{oracle_dim: {int: [1, 3]}}}\n",
        "cannot open search storage 'postgresql+psycopg://me:***@127.0.0.1:9/x'",
        f"run s.yaml --tracking sqlite:///runs.db --storage postgresql+psycopg://me:{PASSWORD}@127.0.0.1:9/x",
    ),
    study(
        "a cluster that is no address", GOOD, "--cluster 'nowhere' is no web address", "submit s.yaml --cluster nowhere"
    ),
    study(
        "a cluster that is not there",
        GOOD,
        "no cluster at http://127.0.0.1:9: Connection refused",
        "submit s.yaml --cluster http://127.0.0.1:9",
    ),
    study(
        "a cluster with a password",
        GOOD,
        "no names or passwords",
        f"submit s.yaml --cluster http://me:{PASSWORD}@127.0.0.1:9",
    ),
    # Results that somebody has tampered with.
    Hostile("a key that climbs out of the store", "explain ../../../etc/passwd", "no trial '../../../etc/passwd'"),
    Hostile("a trial that is not there", f"explain {KEY}", f"no trial '{KEY}'"),
    Hostile(
        "a result that is no JSON",
        f"explain {KEY}",
        "result.json: not a readable trial result",
        result(KEY, result_json="{"),
    ),
    Hostile(
        "a result of another shape",
        f"explain {KEY}",
        "result.json: not a readable trial result",
        result(KEY, result_json='{"surprise": 1}'),
    ),
    Hostile(
        "a result without checksums",
        f"explain {KEY}",
        "manifest.json: no readable list of checksums; run its study again",
        {f".nbsr/trials/{KEY}/result.json": "{}"},
    ),
    Hostile(
        "a result that was changed after it was saved",
        f"explain {KEY}",
        "result.json is not what was saved: its checksum differs",
        {**result(KEY, result_json="{}"), f".nbsr/trials/{KEY}/result.json": '{"key": 1}'},
    ),
    Hostile(
        "the result of another trial",
        f"explain {KEY}",
        "result.json is the result of another trial, 'fedcba9876543210'",
        result(KEY, result_json='{"key": "fedcba9876543210", "status": "finished", "seconds": 1.0}'),
    ),
    Hostile(
        "weights that run code when they are unpickled",
        f"explain {TRAINED}",
        "model.pt",
        weights=lambda _: malicious_weights(),
    ),
    Hostile(
        "weights that were cut in half", f"explain {TRAINED}", "model.pt", weights=lambda good: good[: len(good) // 2]
    ),
    Hostile("weights that are a text", f"explain {TRAINED}", "model.pt", weights=lambda _: b"weights"),
    Hostile("a report of nothing", "report nowhere", "no trial 'nowhere'"),
    Hostile("pages of a store without runs", "ui --port 99999999", "mlflow.db holds no runs yet"),
)
