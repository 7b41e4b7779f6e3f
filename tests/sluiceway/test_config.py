"""The configuration objects and their sources."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import attrs
import pytest

from sluiceway.config import Config, ConfigError, DestinationPolicy, Listener, load
from sluiceway.config.oversights import oversights
from sluiceway.config.sources import Layer
from sluiceway.config.structure import known_keys
from sluiceway.queues import names
from sluiceway.queues.policy import QueuePolicy


def load_text(tmp_path: Path, text: str, **environment: str) -> Config:
    file = tmp_path / "broker.toml"
    file.write_text(dedent(text))
    return load(file, environment=environment)


def mistakes(tmp_path: Path, text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text, **environment)
    return str(caught.value).splitlines()


def mistake(tmp_path: Path, text: str, **environment: str) -> str:
    found = mistakes(tmp_path, text, **environment)
    assert len(found) == 1, found
    return found[0]


# -- sources -----------------------------------------------------------------------------------------------------------


def test_without_sources_it_is_the_default() -> None:
    assert load() == Config()


def test_each_source_goes_over_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[logging]\nlevel = "error"\nformat = "json"\n[broker]\nname = "from-file"\n')
    config = load(
        file,
        environment={"SLUICEWAY_LOGGING__LEVEL": "warning", "SLUICEWAY_BROKER__NAME": "from-environment"},
        flags=[Layer("--log-level", {"logging": {"level": "debug"}})],
    )
    assert (config.logging.format, config.broker.name, config.logging.level) == ("json", "from-environment", "debug")


def test_units_are_read_in_every_section(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        """
        [broker]
        shutdown_seconds = "1500 ms"
        [[listeners]]
        limits = { body_bytes_max = "8 MiB", heart_beat_min_ms = "2 s", connect_timeout_seconds = 3 }
        [[destinations]]
        match = "/queue/a"
        memory_bytes = "1 MiB"
        count_max = "none"
        expires_max_ms = "1 min"
        """,
    )
    limits = config.listeners[0].limits
    assert config.broker.shutdown_seconds == 1.5
    assert (limits.body_bytes_max, limits.heart_beat_min_ms, limits.connect_timeout_seconds) == (8 << 20, 2000, 3.0)
    assert config.destinations[0].settings == {"memory_bytes": 1 << 20, "count_max": None, "expires_max_ms": 60_000}


def test_lists_from_the_environment_are_json_or_separated_by_commas() -> None:
    plain = load(environment={"SLUICEWAY_LISTENERS": "127.0.0.1:1, [::1]:2"})
    assert [listener.address for listener in plain.listeners] == ["127.0.0.1:1", "[::1]:2"]
    full = load(
        environment={"SLUICEWAY_LISTENERS": '[{"address": "127.0.0.1:1", "limits": {"body_bytes_max": "1 KiB"}}]'}
    )
    assert full.listeners[0].limits.body_bytes_max == 1024


def test_tables_from_the_environment_are_json_or_pairs() -> None:
    assert load(environment={"SLUICEWAY_SECURITY__USERS": "web=a, ops=b=c"}).security.users == {
        "web": "a",
        "ops": "b=c",
    }
    assert load(environment={"SLUICEWAY_SECURITY__USERS": '{"web": "x,y"}'}).security.users == {"web": "x,y"}
    assert load(environment={"SLUICEWAY_SECURITY__USERS__WEB": "z"}).security.users == {"web": "z"}


def test_variables_without_a_section_are_not_ours() -> None:
    assert load(environment={"SLUICEWAY_URL": "stomp://elsewhere", "SLUICEWAY_VENV": ".venv-3.13"}) == Config()


def test_numbers_from_the_environment_are_read_as_numbers() -> None:
    config = load(
        environment={"SLUICEWAY_DISPATCHER__BUDGET_COUNT": "64", "SLUICEWAY_DISPATCHER__TURN_SECONDS": "0.002"}
    )
    assert (config.dispatcher.budget_count, config.dispatcher.turn_seconds) == (64, 0.002)


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    said = mistake(tmp_path, '[logging]\nlevle = "info"\n')
    assert said == f"{tmp_path / 'broker.toml'}: logging.levle = 'info': unknown key; did you mean logging.level?"


def test_an_unknown_key_in_a_list_names_its_place(tmp_path: Path) -> None:
    said = mistake(tmp_path, '[[listeners]]\n[[listeners]]\naddress = "[::1]:5"\nlimits = { header_count = 5 }\n')
    assert (
        "listeners[2].limits.header_count = 5: unknown key; did you mean listeners[2].limits.header_count_max?" in said
    )


def test_a_key_of_another_section_is_found_there(tmp_path: Path) -> None:
    said = mistake(tmp_path, "[broker]\nprefetch_count = 5\n")
    assert "did you mean destinations[].prefetch_count?" in said


def test_an_unknown_section_lists_the_known_ones(tmp_path: Path) -> None:
    said = mistake(tmp_path, "[zzz]\n")
    known = ", ".join(section.name for section in attrs.fields(Config))
    assert f"zzz: unknown key; known here: {known}" in said


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("[[listeners]]\nconnections_max = true", "listeners[1].connections_max = True", "whole number"),
        ("[[listeners]]\nconnections_max = 0", "listeners[1].connections_max = 0", "must be 1 or more"),
        ('[[listeners]]\naddress = "61613"', "listeners[1].address = '61613'", "write HOST:PORT"),
        ('[[listeners]]\naddress = "a:99999"', "listeners[1].address = 'a:99999'", "write HOST:PORT"),
        ("listeners = 5", "listeners = 5", "must be a list"),
        ("[listeners]", "listeners", "must be a list: write [[listeners]] in front of each entry"),
        (
            "listeners = [61613]",
            "listeners[1] = 61613",
            'must be an address in quotes, such as "127.0.0.1:61613", or a table',
        ),
        ("[[listeners]]\ntls = true", "listeners[1].tls = True", "must be a table, such as { certificate = … }"),
        (
            '[[destinations]]\nmatch = "/queue/a"\nx-message-ttl = 5',
            "destinations[1].x-message-ttl = 5",
            "unknown key; here it is called destinations[1].expires_max_ms",
        ),
        (
            "[broker]\nvm_memory_high_watermark = 0.4",
            "broker.vm_memory_high_watermark = 0.4",
            "unknown key; here it is called broker.memory_bytes",
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\nfull = "drop-head"',
            "destinations[1].full = 'drop-head'",
            "must be one of block, drop_oldest, drop_newest, reject, dead_letter (drop-head of other brokers is "
            "drop_oldest here)",
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\ndead_letter = "queue/b"',
            "destinations[1].dead_letter = 'queue/b'",
            "'queue/b' has no slash in front: did you mean /queue/b? A queue that is really called so is "
            "/queue/queue/b",
        ),
        ("listeners = []", "listeners", "must not be empty"),
        ('listeners = ["a:1", "a:1"]', "listeners", "two listeners are called 'a:1'"),
        (
            '[[listeners]]\naddress = "a:1"\nname = "admin"',
            "listeners",
            "can't be called 'admin': that is the admin port",
        ),
        ("broker = 5", "broker = 5", "must be a table, such as { name = … }"),
        ('[broker]\nshutdown_seconds = "3 weeks"', "broker.shutdown_seconds = '3 weeks'", "units: ms, s, min, h, d"),
        ('[logging]\nlevel = "loud"', "logging.level = 'loud'", "one of debug, info, warning, error"),
        ("[logging]\nlevel = 5", "logging.level = 5", "must be text"),
        ("[dispatcher]\nbudget_count = 0", "dispatcher.budget_count = 0", "must be above 0"),
        ("[dispatcher]\nturn_seconds = []", "dispatcher.turn_seconds", "must be a number"),
        ("[dispatcher]\nturn_seconds = inf", "dispatcher.turn_seconds = inf", "must be a number"),
        ("[dispatcher]\nbudget_count = inf", "dispatcher.budget_count = inf", "must be a whole number"),
        ('[[destinations]]\nmatch = "/queue/a"\nfull = "explode"', "destinations[1].full = 'explode'", "drop_oldest"),
        ('[[destinations]]\nmatch = "/queue/>.a"', "destinations[1].match = '/queue/>.a'", "must be the last level"),
        ('[[destinations]]\nmatch = "/amq/queue/a"', "destinations[1].match = '/amq/queue/a'", "known as /queue/a"),
        ('[[destinations]]\nmatch = "/topic/#.a.>"', "destinations[1].match = '/topic/#.a.>'", "in place of the last"),
        ('[[destinations]]\nmatch = "/"', "destinations[1].match = '/'", "write /> for all"),
        ('[[destinations]]\nmatch = "orders"', "destinations[1].match = 'orders'", "must be a full destination"),
        ("[[destinations]]\nmemory_bytes = 5", "destinations[1].match", "is missing"),
        (
            '[[destinations]]\nmatch = "/queue/a"\nkind = "pipe"',
            "destinations[1].kind = 'pipe'",
            "must be one of queue, relay",
        ),
        ('[[destinations]]\nmatch = "/>"\nkind = "relay"', "destinations[1]", "match queues only, such as /queue/>"),
        ('[[destinations]]\nmatch = "/topic/a"\nkind = "relay"', "destinations[1]", 'kind = "relay" is for queues'),
        (
            '[[destinations]]\nmatch = "/queue/a"\nkind = "relay"\npaging = "page"',
            "destinations[1]",
            'paging has no meaning with kind = "relay", which keeps nothing: remove it',
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\nkind = "relay"\nfull = "reject"',
            "destinations",
            'add full = "block" to the last one that does',
        ),
        (
            '[[destinations]]\nmatch = "/queue/>"\nkind = "relay"',
            "destinations",
            'add an entry below with match = "/queue/dead-letters" and kind = "queue"',
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\npartition_by = "customer"',
            "destinations[1].partition_by = 'customer'",
            "must be header:NAME, such as header:customer, or function:MODULE:NAME",
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\npartition_by = "function:parts"',
            "destinations[1].partition_by = 'function:parts'",
            "must be function:MODULE:NAME, such as function:shop.parts:by_region",
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\npartition_by = "function:no_such_module:by_region"',
            "destinations[1]",
            "importing no_such_module raised ModuleNotFoundError: No module named 'no_such_module'. Install the module",
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\npartition_by = "function:json:by_region"',
            "destinations[1]",
            "json has nothing by the name by_region",
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\npartition_by = "header:a"\npartitions_count = 1',
            "destinations[1].partitions_count = 1",
            "must be 2 to 256, got 1: for one part leave partition_by out",
        ),
        (
            '[[destinations]]\nmatch = "/topic/a"\npartition_by = "header:a"',
            "destinations[1]",
            "partition_by is for queues, and /topic/a is for others too",
        ),
        (
            '[[destinations]]\nmatch = "/queue/a"\npartitions_count = 4',
            "destinations",
            'add partition_by = "header:NAME", or remove it',
        ),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(tmp_path: Path, text: str, key: str, what: str) -> None:
    said = mistake(tmp_path, text)
    assert said.startswith(f"{tmp_path / 'broker.toml'}: {key}: ")
    assert what in said


def test_a_mistake_names_its_key_and_its_value_once(tmp_path: Path) -> None:
    """Whatever finds it: a validator of one value, or one that says which of several is wrong."""
    said = mistakes(
        tmp_path,
        "[[listeners]]\nconnections_max = 0\n"
        '[[destinations]]\nmatch = "/queue/a"\nfull = "explode"\n'
        '[[security.permissions]]\nusers = ["a"]\nactions = ["send"]\n'
        '[[security.permissions]]\nusers = ["a"]\nactions = ["fly"]\ndestinations = ["#"]\n',
    )
    broker_toml = tmp_path / "broker.toml"
    assert f"{broker_toml}: listeners[1].connections_max = 0: must be 1 or more" in said
    [of_full] = [line for line in said if "].full" in line]
    assert of_full.startswith(f"{broker_toml}: destinations[1].full = 'explode': must be one of block, ")
    assert of_full.endswith(" dead_letter")
    [of_actions] = [line for line in said if "].actions" in line]
    assert of_actions.startswith(f"{broker_toml}: security.permissions[2].actions: must be some of connect, ")
    [of_destinations] = [line for line in said if "permissions[2].destinations" in line]
    assert of_destinations.startswith(f"{broker_toml}: security.permissions[2].destinations: must be a full ")


def test_all_mistakes_are_told_at_once_each_with_its_source(tmp_path: Path) -> None:
    said = mistakes(tmp_path, '[logging]\nlevel = "loud"\nfromat = 5\n', SLUICEWAY_BROKER__NAME=" ")
    assert len(said) == 3
    assert sum(str(tmp_path / "broker.toml") in line for line in said) == 2
    assert any(line.startswith("environment variable SLUICEWAY_BROKER__NAME: broker.name = ' ': ") for line in said)


def test_a_mistake_in_a_flag_names_the_flag() -> None:
    with pytest.raises(
        ConfigError, match=r"^--listen: listeners\[1\]: .*write HOST:PORT|^--listen: listeners\[1\].address"
    ):
        load(flags=[Layer("--listen", {"listeners": ["nowhere"]})])


def test_a_passcode_is_never_shown(tmp_path: Path) -> None:
    said = mistake(tmp_path, "[security]\nusers = { web = 12345 }\n")
    assert "security.users.web" in said
    assert "12345" not in said
    config = load_text(tmp_path, '[security]\nusers = { web = "hunter2" }\n')
    assert "hunter2" not in repr(config)


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file; `sluiceway config >"):
        load(tmp_path / "none.toml")


def test_what_is_not_toml_is_named_with_its_line(tmp_path: Path) -> None:
    assert "line 2" in mistake(tmp_path, "[broker]\nname = \n")


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:61613", "127.0.0.1", 61613), ("[::1]:0", "::1", 0), ("broker.example:5", "broker.example", 5)],
)
def test_an_address_is_split_into_host_and_port(address: str, host: str, port: int) -> None:
    listener = Listener(address)
    assert (listener.host, listener.port) == (host, port)


def test_every_matching_entry_applies_from_top_to_bottom() -> None:
    config = Config(
        destinations=[
            DestinationPolicy("/>", {"memory_bytes": 1000, "prefetch_count": 1}),
            DestinationPolicy("/queue/orders.*", {"memory_bytes": 2000}),
            DestinationPolicy("/topic/>", {"full": "block"}),
        ]
    )
    orders = config.policy_for(names.parse("/queue/orders.eu"))
    assert (orders.memory_bytes, orders.prefetch_count, orders.full) == (2000, 1, None)
    assert config.policy_for(names.parse("/queue/orders.eu.berlin")).memory_bytes == 1000
    assert config.policy_for(names.parse("/topic/a.b")).full == "block"


def test_a_relay_takes_its_policy_from_all_entries_that_match_it() -> None:
    general = DestinationPolicy("/queue/>", {"full": "reject", "paging": "offload"})
    with pytest.raises(ValueError, match=r"/queue/a is a relay.*says full = \"reject\""):
        Config(destinations=[general, DestinationPolicy("/queue/a", {"kind": "relay"})])
    with pytest.raises(ValueError, match=r"/queue/a\.[*>] is a relay"):
        Config(
            destinations=[
                DestinationPolicy("/queue/a.>", {"kind": "relay"}),
                DestinationPolicy("/queue/a.*", {"full": "drop_oldest"}),
            ]
        )
    config = Config(destinations=[general, DestinationPolicy("/queue/a", {"kind": "relay", "full": "block"})])
    assert config.policy_for(names.parse("/queue/a")).kind == "relay"
    assert config.policy_for(names.parse("/queue/b")).kind == "queue"


def test_relays_leave_the_queues_of_dead_letters_alone() -> None:
    relays = DestinationPolicy("/queue/>", {"kind": "relay"})
    with pytest.raises(ValueError, match="/queue/dead-letters takes dead letters"):
        Config(destinations=[relays])
    Config(destinations=[relays, DestinationPolicy("/queue/dead-letters", {"kind": "queue"})])


def test_a_destination_that_nothing_matches_has_the_defaults() -> None:
    config = Config(destinations=[DestinationPolicy("/queue/a", {"memory_bytes": 1})])
    assert config.policy_for(names.parse("/queue/b")) == QueuePolicy()


def test_a_policy_made_in_code_is_checked_too() -> None:
    with pytest.raises(TypeError, match="unknown key 'memory_byte'; did you mean memory_bytes"):
        DestinationPolicy("/queue/a", {"memory_byte": 1})
    with pytest.raises(ValueError, match="above 0"):
        DestinationPolicy("/queue/a", {"memory_bytes": 0})


def test_two_free_ports_are_not_one_listener_twice() -> None:
    assert len(Config(listeners=[Listener("127.0.0.1:0"), Listener("127.0.0.1:0")]).listeners) == 2


def test_the_configuration_is_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Config().broker.name = "other"  # type: ignore[misc]


def test_every_key_is_documented() -> None:
    def undocumented(cls: type, prefix: str = "") -> list[str]:
        found = []
        for field in attrs.fields(cls):
            if "doc" not in field.metadata:
                found.append(prefix + field.name)
            if isinstance(field.type, type) and attrs.has(field.type):
                found += undocumented(field.type, f"{prefix}{field.name}.")
        return found

    missing = [
        *undocumented(Config),
        *undocumented(Listener, "listeners[]."),
        *undocumented(QueuePolicy, "destinations[]."),
    ]
    assert not missing
    assert "listeners[].limits.header_count_max" in known_keys()
    assert "destinations[].memory_bytes" in known_keys()


# -- oversights --------------------------------------------------------------------------------------------------------


def test_a_setting_that_a_wider_entry_below_sets_again_is_an_oversight(tmp_path: Path) -> None:
    config = load_text(
        tmp_path,
        """
        [[destinations]]
        match = "/queue/orders.*"
        count_max = 10
        prefetch_count = 1
        [[destinations]]
        match = "/queue/>"
        count_max = 100
        [[destinations]]
        match = "/queue/orders.eu"
        count_max = 7
        """,
    )
    [found] = oversights(config, {})
    assert found.startswith("destinations[1].count_max never matters, because destinations[2] (/queue/>) stands below")


def test_a_name_with_a_slip_is_an_oversight(tmp_path: Path) -> None:
    """No error: this is how a destination is configured that is really called so."""
    config = load_text(
        tmp_path,
        """
        [[destinations]]
        match = "/queu/>"
        dead_letter = "/queus/dead"
        [security]
        users = { ann = "secret" }
        permissions = [{ users = ["ann"], actions = ["send"], destinations = ["/queue/a", "/topics/prices.*"] }]
        """,
    )
    assert oversights(config, {}) == [
        "destinations[1].match: '/queu/>' begins with no known prefix: did you mean /queue/>? It is used as it is",
        "destinations[1].dead_letter: '/queus/dead' begins with no known prefix: did you mean /queue/dead? It is used "
        "as it is",
        "security.permissions[1].destinations: '/topics/prices.*' begins with no known prefix: did you mean "
        "/topic/prices.*? It is used as it is",
    ]


def test_a_variable_with_one_underscore_in_place_of_two_is_an_oversight() -> None:
    variables = {"SLUICEWAY_LOGGING_LEVEL": "debug", "SLUICEWAY_URL": "stomp://a", "SLUICEWAY_LOGGING__LEVEL": "info"}
    [found] = oversights(Config(), variables)
    assert "SLUICEWAY_LOGGING_LEVEL is ignored: write SLUICEWAY_LOGGING__LEVEL, with two" in found
