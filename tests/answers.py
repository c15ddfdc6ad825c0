# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands answer with -j, and their published schemas."""

from __future__ import annotations

from typing import Any

import jsonschema
import schemas


def strict(schema: Any) -> Any:
    """Return the schema with nothing allowed that it does not name: keys are added to both."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if "properties" in closed and isinstance(closed.get("required"), list):
        closed.setdefault("additionalProperties", False)
    return closed


def check(name: str, document: object) -> None:
    """Validate a document by the schema of the command `name`. Raises: ValidationError."""
    schema = strict(schemas.make_answer_schema(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)
