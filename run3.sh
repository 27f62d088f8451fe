echo -9 > /proc/self/autogroup
cd /work/runs/fast1 && git pull -q origin main && git log --oneline | head -1
export NBSR_DATA=/work/shared/data OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest -n 2 --dist worksteal -m "not slow" -p no:cacheprovider --timeout=600 -q --maxfail=80 -rf --durations=15
