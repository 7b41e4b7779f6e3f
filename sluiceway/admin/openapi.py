"""The API described as OpenAPI 3.1, made of the table of routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluiceway.admin import schema
from sluiceway.admin.access import COOKIE, CSRF_HEADER
from sluiceway.admin.reach import Together
from sluiceway.admin.routes import ApiRoute, Door, Parameter
from sluiceway.version import VERSION


def document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """The whole of it, JSON-able."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluiceway",
            "version": VERSION,
            "description": "The admin port of a Sluiceway broker: its state, its messages, and what can be done about "
            "them. Times are in seconds, sizes in bytes. Lists come in pages.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
            "schemas": {"Error": schema.ERROR},
        },
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    error = {
        "description": "Refused: the error gives the reason and the remedy.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    is_of_all = isinstance(route.reach, Together) and route.reach.merge is not None
    answer_schema = schema.of_all_hubs(route.answer) if is_of_all else route.answer
    answer = {"description": route.summary, "content": {"application/json": {"schema": answer_schema}}}
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "description": " ".join(filter(None, [route.doc, f"For {route.door.value}."])),
        "responses": {"200": answer, **{str(status): answer for status in route.statuses}, "default": error},
        "security": [] if route.door is Door.OPEN else [{"basic": []}, {"bearer": []}, {"session": []}],
    }
    parameters = [_parameter(parameter) for parameter in route.query]
    if route.method == "POST" and route.csrf:
        parameters.append(
            {
                "name": CSRF_HEADER,
                "in": "header",
                "description": "The `csrf` of the session; not needed with HTTP Basic.",
                "schema": schema.TEXT,
            }
        )
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": route.body}}}
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": "string"}
    if parameter.kind == "count":
        kind = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
    if parameter.default is not None:
        kind["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.doc,
        "required": parameter.default is None and not parameter.optional,
        "schema": kind,
    }
