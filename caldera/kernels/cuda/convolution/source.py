"""Source text of the convolution kernels; their common parts are in implicit_gemm.cuh."""

from __future__ import annotations

from functools import lru_cache

from caldera.kernels.cuda.codegen.kernel import STORED, KernelTemplate, computed_type
from caldera.kernels.cuda.product.problem import ThreadTile

TYPES = """#include "implicit_gemm.cuh"
typedef {stored} T;
typedef {computed} S;
"""
CORRELATE = KernelTemplate(
    "correlate",
    {
        "out": "{result}*",
        "image": "const T*",
        "filters": "const T*",
        "window": "Window",
        "images": "Images",
        "steps": "Filters",
        "places": "ImagePlaces",
        "results": "i32",
        "scheduler": "TileScheduler",
    },
    """{{
    typedef {tile} Block;
    WorkTile mine = scheduler.of(blockIdx.x, Block::SIDE);
    Patches<T, true> a = {{image + mine.product * images.group, window, images}};
    FilterLines<T> b = {{filters + mine.product * steps.group, window, steps, results}};
    S sums[Block::PER][Block::PER];
    block_product<Block, Access<{left}>, Access<{right}>>(a, b, mine.row, mine.column, mine.begin,
                                                    mine.end, sums);
    i32 rows = window.pixels, columns = results;
    each_result<Block>(mine, rows, columns, [&](int i, int j, i32 row, i32 column) {{
        {store}
    }});
}}
""",
)
WEIGHT = KernelTemplate(
    "weight",
    {
        "out": "{result}*",
        "image": "const T*",
        "gradient": "const T*",
        "window": "Window",
        "images": "Images",
        "outer": "Images",
        "places": "FilterPlaces",
        "results": "i32",
        "scheduler": "TileScheduler",
    },
    """{{
    typedef {tile} Block;
    WorkTile mine = scheduler.of(blockIdx.x, Block::SIDE);
    ChannelLines<T> a = {{gradient + mine.product * outer.group, window, outer, results}};
    Patches<T, false> b = {{image + mine.product * images.group, window, images}};
    S sums[Block::PER][Block::PER];
    block_product<Block, Access<{left}>, Access<{right}>>(a, b, mine.row, mine.column, mine.begin,
                                                    mine.end, sums);
    i32 rows = results, columns = window.terms;
    each_result<Block>(mine, rows, columns, [&](int i, int j, i32 row, i32 column) {{
        {store}
    }});
}}
""",
)
WHOLE = "out[places.of(window, mine.product, row, column)] = Stored<T>::from(sums[i][j]);"
PARTIAL = """i64 products = gridDim.x / ((u32)scheduler.across * scheduler.down * scheduler.splits);
        i64 line = (mine.split * products + mine.product) * rows + row;
        out[line * columns + column] = sums[i][j];"""
SPLIT_K_REDUCE = KernelTemplate(
    "split_k_reduce",
    {
        "out": "T*",
        "terms": "const S*",
        "splits": "i32",
        "count": "u32",
        "window": "Window",
        "places": "{places}",
        "rows": "u32",
        "columns": "u32",
    },
    """{{
    for (u32 i = grid_index<u32>(); i < count; i += grid_stride<u32>()) {{
        S sum = terms[i];
        for (i32 split = 1; split < splits; split++) sum += terms[(i64)split * count + i];
        u32 line = i / columns, column = i - line * columns, group = line / rows;
        out[places.of(window, group, line - group * rows, column)] = Stored<T>::from(sum);
    }}
}}
""",
)
EACH = KernelTemplate(
    "each",
    {
        "out": "T*",
        "image": "const T*",
        "filters": "const T*",
        "window": "Window",
        "images": "Images",
        "steps": "Filters",
        "places": "ImagePlaces",
        "results": "u32",
        "groups": "u32",
        "tap_rows": "i32",
        "count": "i64",
    },
    """{{
    i64 index = grid_index<i64>();
    if (index >= count) return;
    u32 all = results * groups, area = window.area.divisor, channel, number;
    if ({last}) {{
        number = (u32)(index / all), channel = (u32)(index - (i64)number * all);
    }} else {{
        u32 plane = (u32)(index / area);
        channel = plane % all, number = plane / all * area + (u32)(index - (i64)plane * area);
    }}
    u32 group = channel / results, own = channel - group * results;
    Pixel pixel = pixel_of(window, number);
    S sum = correlated<S>(image + group * images.group, filters + group * steps.group +
                          own * steps.result, window, images, steps, tap_rows, pixel);
    out[places.of(window, group, number, own)] = Stored<T>::from(sum);
}}
""",
)
EACH_WEIGHT = KernelTemplate(
    "each_weight",
    {
        "terms": "S*",
        "image": "const T*",
        "gradient": "const T*",
        "window": "Window",
        "images": "Images",
        "outer": "Images",
        "results": "u32",
        "groups": "u32",
        "span": "i32",
        "count": "u32",
    },
    """{{
    u32 index = grid_index<u32>();
    if (index >= count) return;
    u32 all = results * groups, result = index % all, rest = index / all;
    u32 number = rest % (u32)window.terms, split = rest / (u32)window.terms;
    u32 group = result / results;
    Term term = term_of(window, number);
    i32 begin = (i32)split * span;
    S sum = gathered<S>(image + group * images.group + term.channel * images.channel,
                        gradient + result * outer.channel, window, images, outer, term, begin,
                        min(begin + span, window.pixels));
    terms[((i64)split * all + result) * window.terms + number] = sum;
}}
""",
)


def types(dtype: str) -> str:
    return TYPES.format(stored=STORED[dtype], computed=computed_type(dtype))


@lru_cache(maxsize=1024)
def tiles_text(
    kernel: KernelTemplate,
    dtype: str,
    tile: ThreadTile,
    left: tuple[bool, int],
    right: tuple[bool, int],
    whole: bool,
) -> str:
    near = [f"{'true' if along else 'false'}, {many}" for along, many in (left, right)]
    return types(dtype) + kernel.source(
        bounds=tile.bounds(computed_type(dtype)),
        result="T" if whole else "S",
        tile=tile.text,
        left=near[0],
        right=near[1],
        store=WHOLE if whole else PARTIAL,
    )


@lru_cache(maxsize=1024)
def text(kernel: KernelTemplate, dtype: str, **words: str) -> str:
    return types(dtype) + kernel.source(**words)
