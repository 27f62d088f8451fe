echo -7 > /proc/self/autogroup
export NBSR_DATA=/work/shared/data OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest -n 2 --dist worksteal -m "not slow" -p no:cacheprovider --timeout=900 -q --maxfail=60
