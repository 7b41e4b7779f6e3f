"""The generated pages hold every key, at its default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from scripts.configuration import markdown
from sluiceway.config import Config
from sluiceway.config.sample import toml_sample
from sluiceway.config.structure import known_keys, structure
from sluiceway.queues import names
from sluiceway.queues.policy import QueuePolicy

DOCS = Path(__file__).resolve().parents[2] / "docs"


def uncommented(*, entries: bool = True) -> str:
    """The sample with the # taken from the front of its keys; prose has a space behind the #. `entries` False: without
    those of lists that are empty as they come, and whose entries have something that must be given.
    """
    sample = toml_sample()
    if not entries:
        sample = re.sub(r"(?ms)^#\[\[(?:security|regions)\.\w+\]\]\n.*?(?=^#\[\[|\n\n\n)", "", sample)
    return re.sub(r"(?m)^#(?=[a-z\[])", "", sample)


def test_the_sample_as_printed_is_the_default() -> None:
    assert structure(tomllib.loads(toml_sample()), Config) == Config()


def test_the_sample_with_every_key_in_force_is_the_default_too() -> None:
    """So each printed default is what the code really does, in a form that the file may hold."""
    config = structure(tomllib.loads(uncommented(entries=False)), Config)
    assert config.policy_for(names.parse("/queue/any")) == QueuePolicy()
    assert (config.broker, config.logging, config.logs, config.security) == (
        Config().broker,
        Config().logging,
        Config().logs,
        Config().security,
    )
    assert (config.dispatcher, config.listeners, config.regions) == (
        Config().dispatcher,
        Config().listeners,
        Config().regions,
    )


def test_no_key_is_missing_in_sample_or_page() -> None:
    sample, page = uncommented(), markdown()
    for key in known_keys():
        name = key.rpartition(".")[2]
        assert re.search(rf"(?m)^{name} = ", sample), key
        assert f"| `{name}` |" in page, key


def test_the_example_in_the_guide_is_valid() -> None:
    example = (DOCS / "configuration.md").read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    config = structure(tomllib.loads(example), Config)
    assert config.policy_for(names.parse("/queue/orders.eu")).prefetch_count == 10


def test_the_pages_in_docs_are_current() -> None:
    """`scripts/check --fix` writes them anew."""
    assert (DOCS / "configuration-reference.md").read_text(encoding="utf-8") == markdown()
    assert (DOCS / "sluiceway.toml").read_text(encoding="utf-8") == toml_sample()
