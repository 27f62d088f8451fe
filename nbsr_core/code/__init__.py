"""Code that a study names: where it is found, and what it consists of."""

from nbsr_core.code.named import import_named, make_findable, split_name
from nbsr_core.code.project import module_folders, project_of

__all__ = ["import_named", "make_findable", "module_folders", "project_of", "split_name"]
