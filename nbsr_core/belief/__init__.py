"""The belief: the Dirichlet over classes, its entropy and tests of it, its calibration, and how far evidence counts."""

from nbsr_core.belief import calibration, dirichlet
from nbsr_core.belief.calibration import DepthCalibration, calibrated, fit_temperature
from nbsr_core.belief.density import DensityFactor
from nbsr_core.belief.entropy_tests import below

__all__ = [
    "DensityFactor",
    "DepthCalibration",
    "below",
    "calibrated",
    "calibration",
    "dirichlet",
    "fit_temperature",
]
