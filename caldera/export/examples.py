"""Example programs that call an exported library."""

from __future__ import annotations

from math import prod

from caldera.export.interface import C_TYPES, LibraryInterface
from caldera.export.programs import PREDICT

ROWS = 3
"""Samples that the examples compute."""


def c_example(interface: LibraryInterface) -> str:
    """Return a C program that predicts for samples of ones and prints the first outputs."""
    name = interface.name
    arguments = interface.function(PREDICT).arguments
    sizes = {each.name: max(1, prod(each.shape)) for each in arguments}
    arrays = "\n".join(
        f"static {C_TYPES[each.dtype]} {each.name}[{ROWS} * {sizes[each.name]}];"
        for each in arguments
    )
    fill = "\n".join(
        f"    for (int i = 0; i < {ROWS} * {sizes[each.name]}; i++) {each.name}[i] = 1;"
        for each in arguments
        if not each.is_output
    )
    given = ", ".join(each.name for each in arguments)
    return f"""\
#include <stdio.h>
#include "{name}.h"

{arrays}

int main(void) {{
    {name}_model *model;
    int code = {name}_create(&model);
    if (code != {name}_OK) return fprintf(stderr, "error %d\\n", code), 1;
{fill}
    code = {name}_predict(model, {ROWS}, {given});
    if (code != {name}_OK) fprintf(stderr, "error %d: %s\\n", code, {name}_message(model));
    for (int row = 0; row < {ROWS}; row++) printf("%.9g\\n", (double)y[row * {sizes["y"]}]);
    {name}_destroy(model);
    return code;
}}
"""
