echo -9 > /proc/self/autogroup
cd /work/runs/fast1 && git pull -q origin main
export NBSR_DATA=/work/shared/data OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest -n 2 --dist worksteal -m "not slow" -p no:cacheprovider --timeout=900 -q tests/core/domains/test_navigation.py tests/core/domains/test_references_of_domains.py tests/core/domains/test_language.py tests/platform/trials/test_keys.py tests/core/learning/test_references.py tests/platform/execution/test_order_of_names.py tests/core/options tests/docs
