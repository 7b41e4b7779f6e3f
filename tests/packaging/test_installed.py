"""The wheel takes two names in site-packages, and works beside a project that has all of the others.

Nothing is fetched: what Sluiceway depends on comes from the environment that runs the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.sources import CORE, PACKAGES, ROOT, modules, name_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # all of it is compiled once

#: A test module of the project.
PROJECT_TESTS: Final = """
import importlib
import json
import sys
from pathlib import Path

import dispatcher, flow, protocols, queues, store
import stomp
from sluiceway.client import Producer
from store.shelf import WHOSE

OURS = (dispatcher, flow, protocols, queues, store)


def test_the_fixture_gives_a_broker(sluiceway_broker):
    connection = stomp.Connection([(sluiceway_broker.host, sluiceway_broker.port)])
    connection.connect("any", "body", wait=True)
    connection.disconnect()


def test_each_has_its_own_packages():
    here = Path(__file__).parent
    assert all(Path(module.__file__).parent.parent == here for module in OURS)
    assert {module.WHOSE for module in OURS} == {WHOSE} == {"ours"}
    assert not Path(sys.modules["sluiceway"].__file__).is_relative_to(here)


def test_all_of_sluiceway_can_be_imported():
    names = json.loads(Path(__file__).with_name("modules.json").read_text())
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # an extra that is not installed
            assert error.name.partition(".")[0] not in ("sluiceway", "pyspark_stomp"), error
    installed = Path(sys.modules["sluiceway"].__file__).parents[1]
    loaded = [Path(sys.modules[name].__file__) for name in names if name in sys.modules]
    assert len(loaded) > 300
    assert all(file.is_relative_to(installed) for file in loaded)
    assert {module.WHOSE for module in OURS} == {"ours"}
"""


def run(*command: str, cwd: Path) -> str:
    """Runs it to its end, without what this run of pytest has in its environment; gives what it printed."""
    hidden = ("PYTEST_", "PYTHON", "SLUICEWAY_", "COV_")
    done = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith(hidden)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """A wheel or sdist of the checkout or of an unpacked sdist."""
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder), cwd=source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the sdist unpacks to."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as sdist:
        if hasattr(tarfile, "data_filter"):
            sdist.extractall(folder / "unpacked", filter="data")
        else:
            sdist.extractall(folder / "unpacked")
    (root,) = (folder / "unpacked").iterdir()
    return root


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the wheel in it, and `pytest` beside it."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    interpreter = str(folder / "bin" / "python")
    site_packages = Path(
        run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    )
    # A line in a .pth file comes after site-packages itself, and .pth files in that place (that of the editable install
    # is one) are not looked at.
    ours = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site_packages / "dependencies.pth").write_text("\n".join(ours) + "\n")
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", interpreter),
        *("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)),
        cwd=folder,
    )
    command = folder / "bin" / "pytest"
    command.write_text(f"#!{interpreter}\nimport sys\nfrom pytest import main\nsys.exit(main())\n")
    command.chmod(0o755)
    return interpreter


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with packages of all five names, some of them with modules that Sluiceway has, too."""
    for name in CORE:
        (tmp_path / name).mkdir()
        for module in ("__init__.py", "shelf.py", "names.py"):
            (tmp_path / name / module).write_text("WHOSE = 'ours'\n")
    names = [name_of(path) for path in modules(*PACKAGES)]
    (tmp_path / "modules.json").write_text(json.dumps([name for name in names if not name.endswith("__main__")]))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_ours.py").write_text(PROJECT_TESTS)
    return tmp_path


SHARE = ROOT / "deploy" / "share"


def is_shared(name: str) -> bool:
    """Whether a file of a wheel is no code, but goes to `share` of its environment."""
    return ".data/data/share/" in name


def contents(wheel: Path) -> dict[str, int]:
    """The checksum of each file."""
    with zipfile.ZipFile(wheel) as packed:
        return {file.filename: file.CRC for file in packed.infolist()}


def test_the_wheel_takes_two_names(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in contents(wheel) if not is_shared(name)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sluiceway", "pyspark_stomp"}


def test_the_wheel_holds_every_file_of_every_package(wheel: Path) -> None:
    """Modules, and what lies among them: `py.typed`, pages of the console, descriptions of formats."""
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted = {f"sluiceway/{name}" if name.partition("/")[0] in CORE else name for name in there}
    assert {name for name in contents(wheel) if ".dist-info/" not in name and not is_shared(name)} == wanted


def test_the_wheel_installs_man_pages_and_completion(wheel: Path) -> None:
    """Below `share` of the environment, where `man` and the shells look."""
    there = {path.relative_to(SHARE).as_posix() for path in SHARE.rglob("*") if path.is_file()}
    assert {"man/man1/sluiceway.1", "man/man1/sluiceway-purge.1", "zsh/site-functions/_sluiceway"} <= there
    assert {name.partition("/data/share/")[2] for name in contents(wheel) if is_shared(name)} == there


@pytest.mark.parametrize("how", ["pytest", "python -m pytest"])
def test_a_project_with_packages_of_the_five_names_has_the_fixture(how: str, project: Path, python: str) -> None:
    """`pytest` puts the project's folder on the path when it collects; with `python -m` plugins find it there."""
    command = [python, "-m", "pytest"] if how == "python -m pytest" else [str(Path(python).with_name("pytest"))]
    said = run(*command, "-q", "-p", "no:cacheprovider", cwd=project)
    assert "3 passed" in said, said


def test_only_the_plugin_has_its_asserts_rewritten(python: str, tmp_path: Path) -> None:
    """pytest would rewrite every module of the wheel, which takes seconds in each new environment."""
    (tmp_path / "test_orders.py").write_text(
        "import sys\n\n\n"
        "def test_rewritten(sluiceway_broker):\n"
        "    names = [name for name in sys.modules if name.partition('.')[0] in ('sluiceway', 'pyspark_stomp')]\n"
        "    loaders = {name: type(sys.modules[name].__spec__.loader).__name__ for name in names}\n"
        "    rewritten = {name for name in names if loaders[name] != 'SourceFileLoader'}\n"
        "    assert len(names) > 200\n"
        "    assert rewritten <= {'sluiceway', 'sluiceway.lazy', 'sluiceway.testing', 'sluiceway.version'}\n"
    )
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "1 passed" in said, said


def test_the_command_starts_where_the_five_names_are_taken(project: Path, python: str) -> None:
    """By its own script, and as a module: then the working folder comes first on the path."""
    for command in ([str(Path(python).with_name("sluiceway"))], [python, "-m", "sluiceway"]):
        assert run(*command, "version", cwd=project)


def test_a_wheel_from_the_sdist_is_the_same(wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    assert contents(build("wheel", unpacked, tmp_path)) == contents(wheel)


def test_an_unpacked_sdist_can_be_run(unpacked: Path) -> None:
    """It has no links: the folders themselves are in their place."""
    assert not [path for path in unpacked.rglob("*") if path.is_symlink()]
    run(sys.executable, "-c", "import sluiceway.store.config as c; assert c.__file__.startswith('/')", cwd=unpacked)
    assert (unpacked / "sluiceway" / "store" / "config.py").is_file()


def test_an_editable_install_has_no_copies(tmp_path: Path) -> None:
    """It is one line that names the checkout. A copy would go stale."""
    code = "import sys; from hatchling.build import build_editable as build; build(sys.argv[1])"
    run(sys.executable, "-c", code, str(tmp_path), cwd=ROOT)
    (built,) = tmp_path.iterdir()
    files = {name for name in contents(built) if ".dist-info/" not in name and not is_shared(name)}
    assert files == {"_sluiceway.pth"}
    with zipfile.ZipFile(built) as packed:
        assert packed.read("_sluiceway.pth").decode().splitlines() == [str(ROOT)]


def test_a_copy_of_a_checkout_builds_the_same(wheel: Path, tmp_path: Path) -> None:
    """With its links, as an image is built from: they lead to where the copy is."""
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copytree(SHARE, copy / SHARE.relative_to(ROOT))
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    assert contents(build("wheel", copy, tmp_path / "built")) == contents(wheel)
