"""A Redis in memory with as much of RedisJSON and RediSearch as LangGraph's savers use: fakeredis has the first, and the search is here.

Debian has no server with these modules.
"""

from __future__ import annotations

import json
import re

import fakeredis
from redis.exceptions import ResponseError

CONDITION = re.compile(r"@(\w+):\{((?:\\.|[^}\\])*)\}")
UNKNOWN_INDEX = ResponseError("Unknown index name")


def search(documents, query, *options):
    """Answer `FT.SEARCH` as a server does with the protocol RESP3. The newest documents are first: no other order is asked for."""
    conditions = {name: re.sub(r"\\(.)", r"\1", value) for name, value in CONDITION.findall(query)}
    assert not CONDITION.sub("", query).strip(" ()"), f"this query is not supported: {query}"
    start = options.index("RETURN") + 2
    fields = options[start : start + int(options[start - 1])]
    matching = {
        key: document
        for key, document in sorted(documents.items(), reverse=True)
        if all(str(document[name]) == value for name, value in conditions.items())
    }
    results = []
    for key, document in matching.items():
        values = {field: document.get(field.removeprefix("$.")) for field in fields}
        texts = {field: value if isinstance(value, str) else json.dumps(value) for field, value in values.items() if value is not None}
        results.append({"id": key, "extra_attributes": texts})
    return {"total_results": len(results), "results": results}


class SearchableRedis(fakeredis.FakeRedis):
    def execute_command(self, *arguments, **options):
        match arguments:
            case "FT.SEARCH", index, *query:
                keys = [key.decode() for key in self.keys(f"{index}:*")]
                return search({key: self.json().get(key) for key in keys}, *query)
            case "FT.INFO", _:
                raise UNKNOWN_INDEX
            case "FT.CREATE", *_:
                return "OK"
        return super().execute_command(*arguments, **options)


class AsyncSearchableRedis(fakeredis.FakeAsyncRedis):
    async def execute_command(self, *arguments, **options):
        match arguments:
            case "FT.SEARCH", index, *query:
                keys = [key.decode() for key in await self.keys(f"{index}:*")]
                return search({key: await self.json().get(key) for key in keys}, *query)
            case "FT.INFO", _:
                raise UNKNOWN_INDEX
            case "FT.CREATE", *_:
                return "OK"
        return await super().execute_command(*arguments, **options)
