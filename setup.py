"""What pyproject.toml cannot say: installed, the folder `dist` is a package called inception_mg_dist.

A top-level package called dist in site-packages would be in the way of anybody's own dist.py, and theirs in the way of
it. Here the folder keeps its name, and an editable install has it by that. A wheel has its files below the other name,
with the imports of it renamed; so it does with the imports of it in the other packages.
"""

import pathlib
import re
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

HERE, INSTALLED = 'dist', 'inception_mg_dist'
EDITABLE = 'editable_wheel' in sys.argv
# `from dist.hosts import Cluster`, `import dist`, and names of modules in quotes.
IMPORTS = re.compile(r"\b((?:from|import) )dist(?=[.\s]|$)|(['\"])dist(?=\.[a-z_]+[.'\"])", re.MULTILINE)


def rename_package(distribution) -> None:
    """Lists the package by its installed name, found in the folder."""
    if not EDITABLE:
        distribution.packages = [re.sub(rf'^{HERE}(?=\.|$)', INSTALLED, name) for name in distribution.packages]
        distribution.package_data = {re.sub(rf'^{HERE}(?=\.|$)', INSTALLED, name): files for name, files in
                                     (distribution.package_data or {}).items()}
        distribution.package_dir = {**(distribution.package_dir or {}), INSTALLED: HERE}


def rename_imports(text: str) -> str:
    """The text of a file with the package's installed name where it imports the package."""
    return IMPORTS.sub(lambda match: f'{match[1] or match[2]}{INSTALLED}', text)


class EggInfo(egg_info):
    def finalize_options(self):
        rename_package(self.distribution)
        super().finalize_options()


class BuildPy(build_py):
    def finalize_options(self):
        rename_package(self.distribution)
        super().finalize_options()

    def build_module(self, module, module_file, package):
        outfile, copied = super().build_module(module, module_file, package)
        if not EDITABLE:
            path = pathlib.Path(outfile)
            path.write_text(rename_imports(path.read_text(encoding='utf-8')), encoding='utf-8')
        return outfile, copied


if __name__ == '__main__':
    setup(cmdclass={'build_py': BuildPy, 'egg_info': EggInfo})
