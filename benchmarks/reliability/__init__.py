"""What happens to studies when machines, processes, servers and disks fail: tried with real ones, and counted.

    python -m benchmarks.reliability [--only NAME ...] [--folder FOLDER] [--list]

Writes what it finds into docs/results/reliability.json, scenario by scenario, and from that file the tables of
docs/reliability.md. Needs Postgres and, for the small disk, the right to mount one.
"""
