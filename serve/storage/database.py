"""The database under the job store: SQLite or PostgreSQL, its transactions, and the version of its schema."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, insert, inspect, make_url, select, update
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, InterfaceError, TimeoutError
from sqlalchemy.orm import Session

from raydiance.serve.errors import ConfigError, Unavailable
from raydiance.serve.storage.migrations import STEPS
from raydiance.serve.storage.tables import Base, SchemaRow

SCHEMA_VERSION = 3
BUSY_TIMEOUT_S = 30
_SCHEMA_LOCK = 0x7261_7964  # PostgreSQL advisory lock: one process at a time creates the tables


class Database:
    """Transactions on one database. Thread-safe; every process opens its own.

    Args:
        url: `sqlite:///FILE` (its folder is created) or `postgresql://user:password@host/name`.
        every_power_cut: what is written is on the disk when it returns. Without, a power cut (never the death of a
            process) may undo the last writes to an SQLite file: of what can be done again.

    Raises:
        ConfigError: another dialect, a file or server that cannot be opened, or a schema newer than this program's.
    """

    def __init__(self, url: str, *, every_power_cut: bool = True) -> None:
        self._engine = _engine(url, every_power_cut)
        self._writer = self._engine.execution_options(raydiance_writes=True)
        try:
            with self._writer.begin() as connection:
                _ensure_schema(connection)
        except (DatabaseError, InterfaceError) as e:
            self.close()
            raise ConfigError(f"storage.database: cannot open '{without_password(url)}': {e.orig}") from e
        except ConfigError:
            self.close()
            raise

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with _unavailable(), Session(self._engine) as session, session.begin():
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with _unavailable(), Session(self._writer) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close all connections. The store may not be used afterwards."""
        self._engine.dispose()


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (DatabaseError, InterfaceError) as e:
        raise Unavailable(f"the job database failed: {e.orig}") from e
    except TimeoutError as e:
        raise Unavailable("the job database has no free connection") from e


def without_password(text: str) -> str:
    """The URL as people may see it. Raises ConfigError where it is none."""
    url = _parsed(text)
    hidden = {name: "***" for name in url.query if "pass" in name.lower()}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def _parsed(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigError("storage.database is no database URL: sqlite:///FILE or postgresql://…") from None


def _engine(text: str, every_power_cut: bool) -> Engine:
    url = _parsed(text)
    dialect = url.get_backend_name()
    if dialect == "sqlite":
        return _sqlite(url, "FULL" if every_power_cut else "NORMAL")
    if dialect == "postgresql":
        return _postgresql(url)
    raise ConfigError(f"storage.database: '{dialect}' is not supported: sqlite:///FILE or postgresql://…")


def _sqlite(url: URL, synchronous: str) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigError("storage.database: an SQLite database must be a file: sqlite:///FILE")
    try:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"storage.database: cannot create the folder of '{url.database}': {e.strerror}") from e
    engine = create_engine(url.set(drivername="sqlite+pysqlite"), connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        _to_wal(connection)
        for pragma in ("foreign_keys=ON", f"synchronous={synchronous}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # a writer takes its lock at once: one that reads first and writes later cannot wait for it, only fail
        writes = connection.get_execution_options().get("raydiance_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _to_wal(connection: Any) -> None:
    """Two processes that do so to a new file at once: one is refused, whatever its patience with locks."""
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)


def _postgresql(url: URL) -> Engine:
    try:
        return create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True)
    except ImportError as e:
        raise ConfigError("storage.database: PostgreSQL needs psycopg: pip install 'raydiance[postgres]'") from e


def _ensure_schema(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
    if not inspect(connection).has_table(SchemaRow.__tablename__):
        Base.metadata.create_all(connection)
        connection.execute(insert(SchemaRow).values(version=SCHEMA_VERSION))
        return
    version = connection.scalar(select(SchemaRow.version)) or 0
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"storage.database has schema version {version}; this program knows version {SCHEMA_VERSION}: "
            "run the newer program or use another database"
        )
    if version < SCHEMA_VERSION:
        Base.metadata.create_all(connection)  # the tables that are new
        for step in range(version + 1, SCHEMA_VERSION + 1):
            STEPS[step](connection)
        connection.execute(update(SchemaRow).values(version=SCHEMA_VERSION))
