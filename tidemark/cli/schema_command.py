"""The command `schema`: what the tables of a store are made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.output import (
    cell,
    example,
    open_for_reading,
    print_result,
    reads_store,
    store_argument,
    table_argument,
    table_lines,
)

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition


@click.command(epilog=example("tidemark schema shop", "tidemark schema shop test.item --json"))
@store_argument
@table_argument(required=False)
@click.option("--system", is_flag=True, help="Include system tables.")
@reads_store
def schema(
    store: Path, table: str | None, system: bool, checkpoint: bool, data_memory: str | None, as_json: bool
) -> None:
    """Show columns, primary key, indexes, partitions, checks and expiry of all tables, or of TABLE."""
    with open_for_reading(store, data_memory, checkpoint) as (_, tables):
        names = tables.tables(system) if table is None else [table]
        found = [schema_of(tables[name].definition) for name in names]
    print_result(found if table is None else found[0], as_json, lambda: _lines(found))


def schema_of(definition: TableDefinition) -> dict[str, Any]:
    """Return a definition as a JSON object."""
    from tidemark.engine.programs.checks import conditions_of

    return {
        "table": definition.name,
        "columns": [_column(each) for each in definition.columns],
        "primary_key": list(definition.primary_key),
        "indexes": [
            {"name": each.name, "columns": list(each.columns), "unique": each.is_unique, "ordered": each.is_ordered}
            for each in definition.indexes
        ],
        "partition": definition.partition.describe(),
        "checks": {name: repr(condition) for name, condition in conditions_of(definition.checks).items()},
        **({} if definition.expires is None else {"expires": definition.expires}),
        **({} if definition.tablespace is None else {"tablespace": definition.tablespace}),
    }


def _column(column: Column) -> dict[str, Any]:
    value = column.default if column.computed is None else repr(column.computed)
    default = {"default": value} if column.has_default else {}
    return {
        "name": column.name,
        "type": repr(column.type),
        "nullable": column.nullable,
        **default,
        "storage": column.storage,
    }


def _lines(found: list[dict[str, Any]]) -> Iterator[str]:
    for number, each in enumerate(found):
        if number:
            yield ""
        yield each["table"]
        rows = [
            (
                column["name"],
                column["type"],
                "NULL" if column["nullable"] else "not NULL",
                cell(column["default"]) if "default" in column else "",
                "" if column["storage"] == "memory" else column["storage"],
            )
            for column in each["columns"]
        ]
        for line in table_lines(rows, ("column", "type", "null", "default", "storage")):
            yield f"  {line}".rstrip()
        yield f"  primary key  {', '.join(each['primary_key'])}"
        for index in each["indexes"]:
            kind = "ordered" if not index["unique"] else "unique, ordered" if index["ordered"] else "unique"
            yield f"  index        {index['name']} ({', '.join(index['columns'])}) {kind}"
        yield f"  partitions   {each['partition']}"
        for name, condition in each["checks"].items():
            yield f"  check        {name}: {condition}"
        if "expires" in each:
            yield f"  expires      {each['expires']}"
        if "tablespace" in each:
            yield f"  tablespace   {each['tablespace']}"
